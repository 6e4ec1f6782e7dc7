//! How much a lock asks of the server: counted by the server itself.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::engine::{
    About, Belief, Claim, Event, Events, Found, Intent, Keep, Mode, Release, Seat, Standing,
};
use lockkeeper::{
    ClaimId, Clock, Engine, ErrorKind, Keeper, KeeperId, LockName, LockOptions, Token,
};
use lockkeeper_testkit::eventually;
use lockkeeper_testkit::server::RedisServer;
use tokio::sync::mpsc::UnboundedReceiver;

/// How many scripts the server has run, and for how many microseconds.
fn scripts(server: &RedisServer) -> (u64, u64) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let field = |name: &str| {
        let value = line.and_then(|line| line.split(',').find_map(|f| f.strip_prefix(name)));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    };
    (field("calls="), field("usec="))
}

/// What clients sent that was neither a script nor the kit's own questions.
fn others(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let known =
        ["subscribe", "script|load", "script|exists", "hello", "client|setinfo", "select", "ping"];
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        known.contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
    };
    stats.lines().filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_commands_per_uncontended_lock_and_release() {
    let server = RedisServer::start();
    let keeper = Keeper::connect(&server.url()).await.unwrap();
    let mutex = keeper.mutex("solo");
    drop(mutex.lock().await.unwrap().release().await.unwrap());
    let ((before, _), quiet) = (scripts(&server), others(&server));
    for _ in 0..200 {
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(scripts(&server).0 - before, 400);
    assert_eq!(others(&server), quiet, "something beside the scripts was sent");
}

/// What is asked for in one go leaves in a few commands. Every claim has its own
/// answer: one whose key is somebody else's fails alone, one whose name another
/// has just got waits.
#[tokio::test] // one thread, as a keeper has
async fn claims_that_ask_together_share_commands_and_fail_alone() {
    let server = RedisServer::start();
    let (engine, _pushed) = open(&server, 7).await;
    let claims: Vec<_> = (0..100).map(|number| claim(7, number, &format!("n{number}"))).collect();
    let latecomer = claim(7, 100, "n50");
    server.cli(&["HSET", "lk:{n8}", "field", "value"]);
    server.cli(&["SET", "lk:{n9}", "hello"]);
    for round in 0..2 {
        // The server has to be told the script again, once for all of them.
        server.cli(&["SCRIPT", "FLUSH"]);
        let before = scripts(&server).0;
        let asked = claims.iter().chain([&latecomer]);
        let asked = asked.map(|claim| engine.acquire(claim, Intent::Queue, Token::ZERO));
        let answers = futures_util::future::join_all(asked).await;
        for (number, answer) in answers.iter().enumerate() {
            match (number, answer) {
                (8 | 9, Err(error)) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
                (100, Ok(Standing::Queued(_))) => {}
                (0..=99, Ok(Standing::Held(_))) => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
        let how = Release { linger: Duration::ZERO, unsure: false };
        let ended = [&latecomer].into_iter().chain(&claims);
        let ended = ended.map(|claim| engine.release(claim, how));
        let found = futures_util::future::join_all(ended).await;
        assert_eq!(found.iter().filter(|found| matches!(found, Ok(Found::Held))).count(), 98);
        assert_eq!(found.iter().filter(|found| matches!(found, Ok(Found::Queued))).count(), 1);
        assert_eq!(found.iter().filter(|found| found.is_err()).count(), 2);
        // 101 claims are two commands, and each script is brought along once more.
        let commands = scripts(&server).0 - before;
        assert!(commands <= 4, "{commands} commands");
    }
    assert_eq!(server.cli(&["HGET", "lk:{n8}", "field"]), "value");
    assert_eq!(server.cli(&["GET", "lk:{n9}"]), "hello");
}

/// An engine of a keeper with this number, and what is pushed to it.
pub(crate) async fn open(
    server: &RedisServer,
    keeper: u128,
) -> (Arc<dyn Engine>, UnboundedReceiver<Event>) {
    let (events, pushed) = Events::channel();
    let keeper = KeeperId::from_number(keeper);
    let seat = Seat { keeper, clock: Clock::system(), events };
    (lockkeeper::engine::at(&server.url()).unwrap().open(seat).await.unwrap(), pushed)
}

pub(crate) fn claim(keeper: u128, number: u64, name: &str) -> Arc<Claim> {
    Arc::new(Claim {
        id: ClaimId { keeper: KeeperId::from_number(keeper), number, turn: 0 },
        name: LockName::new(name).unwrap(),
        mode: Mode::Exclusive,
        lease: Duration::from_secs(60),
        margin: Duration::ZERO,
        lock_delay: Duration::ZERO,
        max_waiters: 100_000,
        under: None,
        about: Arc::new(About::default()),
    })
}

/// A name with many waiters, worked at the seam.
struct Queue {
    engine: Arc<dyn Engine>,
    pushed: UnboundedReceiver<Event>,
    claims: Vec<Arc<Claim>>,
}

impl Queue {
    async fn of(server: &RedisServer, waiters: u64) -> Self {
        let keeper = u128::from(waiters);
        let (engine, pushed) = open(server, keeper).await;
        let name = format!("queue-{waiters}");
        let claims: Vec<_> = (0..=waiters).map(|number| claim(keeper, number, &name)).collect();
        let mut first = Vec::new();
        for batch in claims.chunks(500) {
            let asked = batch.iter().map(|claim| engine.acquire(claim, Intent::Queue, Token::ZERO));
            let answers = futures_util::future::join_all(asked).await;
            for (claim, answer) in batch.iter().zip(answers) {
                if let Standing::Queued(place) = answer.unwrap()
                    && first.len() < 50
                {
                    let belief = Belief::Queued { ticket: place.ticket };
                    first.push(Keep { claim: claim.clone(), belief, floor: Token::ZERO });
                }
            }
            // A long queue takes long to build; those at its head stay alive.
            let kept = engine.renew(&first).await;
            assert!(kept.iter().all(|kept| matches!(kept, Ok(Standing::Queued(_)))), "{kept:?}");
        }
        Queue { engine, pushed, claims }
    }

    /// Passes the name on once; returns the winner's place in the order of arrival.
    async fn hand_over(&mut self, holder: usize) -> usize {
        let how = Release { linger: Duration::ZERO, unsure: false };
        self.engine.release(&self.claims[holder], how).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(2), self.pushed.recv()).await;
        let Ok(Some(Event::HandedOver { claim, token, .. })) = heard else {
            panic!("not handed over: {heard:?}");
        };
        let winner = usize::try_from(claim.number).unwrap();
        let (claim, belief) = (self.claims[winner].clone(), Belief::Held { token });
        let keep = Keep { claim, belief, floor: Token::ZERO };
        let confirmed = self.engine.renew(&[keep]).await.remove(0).unwrap();
        assert!(matches!(confirmed, Standing::Held(_)), "{confirmed:?}");
        winner
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_commands_per_hand_over_however_many_wait() {
    let server = RedisServer::start();
    for waiters in [2, 100, 1000] {
        let mut queue = Queue::of(&server, waiters).await;
        let before = scripts(&server).0;
        let turns = (waiters as usize).min(40);
        for turn in 0..turns {
            assert_eq!(queue.hand_over(turn).await, turn + 1, "out of order");
        }
        assert_eq!(scripts(&server).0 - before, 2 * turns as u64, "with {waiters} waiters");
    }
}

/// A lock that is given back at once needs no lease: its release is all that a
/// hand-over costs. One that is kept is confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_hold_is_not_confirmed_and_a_long_one_is() {
    let server = RedisServer::start();
    let first = Keeper::connect(&server.url()).await.unwrap();
    let second = Keeper::connect(&server.url()).await.unwrap();
    // Gets the name for the second keeper, out of the hands of the first.
    let handed_over = async || {
        let guard = first.mutex("short").lock().await.unwrap();
        let (mutex, passed_on) = (second.mutex("short"), async {
            let queued = async || first.status("short").await.unwrap().waiters.len() == 1;
            assert!(eventually(Duration::from_secs(5), queued).await, "no place in the queue");
            let _ = guard.release().await.unwrap();
        });
        tokio::join!(mutex.lock(), passed_on).0.unwrap()
    };
    // On a busy machine some of them are held for longer than they want to.
    for _ in 0..20 {
        let _ = handed_over().await.release().await.unwrap();
    }
    let tally = second.tally().await.unwrap();
    assert!(tally.renewals < tally.handed_over, "confirmed though given back: {tally:?}");

    let kept = handed_over().await;
    let short = kept.valid_until();
    let confirmed = async || kept.valid_until() > short;
    assert!(eventually(Duration::from_secs(5), confirmed).await, "never confirmed");
    assert!(kept.valid_for() > Duration::from_secs(10), "{:?}", kept.valid_for());
}

/// The server's own time for a hand-over hardly depends on how many wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_with_ten_thousand_waiters() {
    let server = RedisServer::start();
    let mut cost = Vec::new();
    for waiters in [10, 10_000] {
        // The best of several: others share this machine.
        let mut best = f64::MAX;
        for _ in 0..3 {
            let mut queue = Queue::of(&server, waiters).await;
            let before = scripts(&server);
            for turn in 0..10 {
                assert_eq!(queue.hand_over(turn).await, turn + 1, "out of order");
            }
            let after = scripts(&server);
            best = best.min((after.1 - before.1) as f64 / 10.0);
            server.cli(&["FLUSHALL"]);
        }
        println!("{waiters} waiters: {best:.1} µs of server time per hand-over");
        cost.push(best);
    }
    assert!(cost[1] <= 2.0 * cost[0], "{cost:?}");
}

/// What many names need to be kept alive leaves together, whenever each of
/// them was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_names_are_kept_alive_by_a_handful_of_commands() {
    const LOOK: Duration = Duration::from_secs(3);
    let server = RedisServer::start();
    let holder = Keeper::connect(&server.url()).await.unwrap();
    let waiter = Keeper::connect(&server.url()).await.unwrap();
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for name in 0..100 {
        let options = LockOptions::default().with_lease(Duration::from_secs(3));
        let mutex = holder.mutex(format!("{name}")).with_options(options);
        guards.push(mutex.lock().await.unwrap());
        let mutex = waiter.mutex(format!("{name}"));
        waiters.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
        // Nothing of what follows is due at the same time by itself.
        tokio::time::sleep(Duration::from_millis(9)).await;
    }
    // Everybody has found into the rhythm after a beat or two.
    let beaten = async || waiter.tally().await.unwrap().beats >= 300;
    assert!(eventually(Duration::from_secs(5), beaten).await, "nobody waits");
    let (before, _) = scripts(&server);
    tokio::time::sleep(LOOK).await;
    let (after, _) = scripts(&server);
    assert!(guards.iter().all(|guard| guard.is_held()));
    println!("{} commands in {LOOK:?} for 100 grants and 100 places", after - before);
    // Two for the places and two for the grants at every beat; one each for
    // every name would be hundreds.
    assert!(after - before <= 60, "{} commands in {LOOK:?}", after - before);
    waiters.iter().for_each(|waiter| waiter.abort());
}
