//! What the scripts do quickly, and what they must not skip on that way.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::{Belief, Claim, Event, Intent, Keep, Release, Revoke, Standing, TICKET};
use lockkeeper::{Clock, ErrorKind, Token};
use lockkeeper_testkit::server::RedisServer;

use crate::counts::{claim, open};

/// Where nobody waits for long, nobody beats; the queue lives on all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lively_queue_outlives_its_keys() {
    let server = RedisServer::start();
    let (engine, mut pushed) = open(&server, 3).await;
    let how = Release { linger: Duration::ZERO, unsure: false };
    let mut holder = claim(3, 0, "lively");
    engine.acquire(&holder, Intent::Queue, Token::ZERO).await.unwrap();
    let mut next = claim(3, 1, "lively");
    engine.acquire(&next, Intent::Queue, Token::ZERO).await.unwrap();
    let mut shortest = i64::MAX;
    for number in 2..60 {
        // Longer than the keys of a queue that nobody joins: eight seconds.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let last = claim(3, number, "lively");
        let place = engine.acquire(&last, Intent::Queue, Token::ZERO).await.unwrap();
        assert!(matches!(place, Standing::Queued(_)), "{place:?}");
        if number % 5 == 0 {
            for key in ["lk:{lively}:q", "lk:{lively}:e", "lk:{lively}:t"] {
                shortest = shortest.min(server.cli(&["PTTL", key]).parse().expect("a number"));
            }
        }
        engine.release(&holder, how).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(2), pushed.recv()).await;
        let Ok(Some(Event::HandedOver { claim, .. })) = heard else {
            panic!("not handed over: {heard:?}");
        };
        assert_eq!(claim, next.id, "out of order");
        (holder, next) = (next, last);
    }
    assert!(shortest > 2_000, "a key of the queue had {shortest} ms left");
}

/// Whoever stopped beating is passed over, whether by those behind, by whoever
/// comes, or by the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_at_the_head_are_passed_over() {
    let server = RedisServer::start();
    let (engine, mut pushed) = open(&server, 5).await;
    let (engine, how) = (&*engine, Release { linger: Duration::ZERO, unsure: false });
    let ask = async |claim: &Arc<Claim>| match engine
        .acquire(claim, Intent::Queue, Token::ZERO)
        .await
        .unwrap()
    {
        Standing::Queued(place) => place,
        other => panic!("{other:?}"),
    };
    // On three names, so that each finds the dead by itself.
    let line = |name: &str| (0..4).map(|number| claim(5, number, name)).collect::<Vec<_>>();
    let (joined, beaten, released) = (line("joined"), line("beaten"), line("released"));
    let mut keeps = Vec::new();
    for claims in [&joined, &beaten, &released] {
        engine.acquire(&claims[0], Intent::Queue, Token::ZERO).await.unwrap();
        assert_eq!(ask(&claims[1]).await.ahead, Some(0));
        let place = ask(&claims[2]).await;
        assert_eq!(place.ahead, Some(1));
        let belief = Belief::Queued { ticket: place.ticket };
        keeps.push(Keep { claim: claims[2].clone(), belief, floor: Token::ZERO });
    }
    tokio::time::sleep(TICKET / 2).await;
    // Also on a server that is out of memory: who waits is not sent away.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let kept = engine.renew(&keeps).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(kept.iter().all(|kept| matches!(kept, Ok(Standing::Queued(_)))), "{kept:?}");
    tokio::time::sleep(TICKET * 6 / 10).await;

    assert_eq!(ask(&joined[3]).await.ahead, Some(1), "the dead was counted");
    let kept = engine.renew(&keeps[1..2]).await.remove(0).unwrap();
    let Standing::Queued(place) = kept else { panic!("{kept:?}") };
    assert_eq!(place.ahead, Some(0), "the dead was counted");
    engine.release(&released[0], how).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(2), pushed.recv()).await;
    let Ok(Some(Event::HandedOver { claim, .. })) = heard else { panic!("{heard:?}") };
    assert_eq!(claim, released[2].id, "passed to the dead");
}

/// The short cuts of the scripts know what they must not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_cut_is_no_way_around_the_rules() {
    let server = RedisServer::start();
    let (engine, mut pushed) = open(&server, 6).await;
    let brief = |number, name: &str| {
        let mut claim = Claim::clone(&claim(6, number, name));
        claim.lease = Duration::from_millis(500);
        claim
    };
    let long = |number| {
        let mut claim = Claim::clone(&claim(6, number, "rules"));
        claim.max_waiters = 1;
        claim
    };
    let ask = async |claim: &Claim| engine.acquire(claim, Intent::Queue, Token::ZERO).await;
    let (holder, waiter) = (long(0), long(1));
    let Ok(Standing::Held(grant)) = ask(&holder).await else { panic!("not granted") };
    let Ok(Standing::Queued(place)) = ask(&waiter).await else { panic!("not queued") };
    let full = ask(&long(2)).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooMany, "{full}");

    let token = grant.token.map(|token| Token::new(token.get() - 1));
    for believed in [token, None] {
        let belief = Belief::Held { token: believed };
        let keep = Keep { claim: Arc::new(holder.clone()), belief, floor: Token::ZERO };
        let stale = engine.renew(&[keep]).await.remove(0).unwrap();
        assert!(matches!(stale, Standing::Gone(_)), "renewed with a token of before: {stale:?}");
    }
    let belief = Belief::Queued { ticket: place.ticket + 1 };
    let keep = Keep { claim: Arc::new(waiter), belief, floor: Token::ZERO };
    let stale = engine.renew(&[keep]).await.remove(0).unwrap();
    assert!(matches!(stale, Standing::Gone(_)), "beaten with a ticket of before: {stale:?}");

    // The first in line looks when the lease ends, which is before its beat.
    let (holder, waiter) = (brief(3, "brief"), brief(4, "brief"));
    ask(&holder).await.unwrap();
    let asked_at = Clock::system().now();
    let Ok(Standing::Queued(place)) = ask(&waiter).await else { panic!("not queued") };
    let look = place.renew_at.since(asked_at);
    assert!(look < Duration::from_millis(600), "looks after {look:?}, past the lease's end");
    // The lease is over: whoever comes next passes the name on, to the first.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let last = ask(&brief(5, "brief")).await.unwrap();
    assert!(matches!(last, Standing::Queued(_)), "{last:?}");
    let heard = tokio::time::timeout(Duration::from_secs(2), pushed.recv()).await;
    let Ok(Some(Event::HandedOver { claim, .. })) = heard else { panic!("{heard:?}") };
    assert_eq!(claim, waiter.id);

    // A lease that is over, and one that was broken, are not renewed.
    for (number, name) in [(6, "over"), (7, "broken")] {
        let claim = brief(number, name);
        let Ok(Standing::Held(grant)) = ask(&claim).await else { panic!("not granted") };
        if name == "broken" {
            let holder = engine.inspect(&claim.name).await.unwrap().holders.remove(0);
            engine.revoke(&claim.name, &holder, Revoke::Orderly, "deploy").await.unwrap();
        } else {
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        let belief = Belief::Held { token: grant.token };
        let keep = Keep { claim: Arc::new(claim), belief, floor: Token::ZERO };
        let kept = engine.renew(&[keep]).await.remove(0).unwrap();
        assert!(matches!(kept, Standing::Gone(_)), "{name}: {kept:?}");
    }
}
