//! Pushes: what they are worth, and what they may overtake.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_beat_under_way_does_not_hold_up_a_hand_over() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    // The next beat is answered "queued", but the answer dawdles.
    let gate = pair.stall(Method::Renew);
    gate.reached().await;
    drop(guard);
    let guard = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    let guard = guard.expect("the push is enough").unwrap().unwrap();
    pair.faults.heal();
    gate.open();
    // The old answer says "queued"; the guard knows better.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(guard.state(), State::Held);
    guard.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_overtakes_the_answer_counts() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let gate = Gate::closed();
    let stall = gate.clone();
    pair.faults.plan(move |call| match call.method {
        Method::Acquire => Some(Fault::StallAfter(stall.clone())),
        Method::Renew => Some(Fault::Fail),
        _ => None,
    });
    let waiting = pair.wait();
    gate.reached().await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    let guard = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    assert!(guard.expect("the early push counts").unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_for_another_ticket_is_ignored() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    let token = Some(Token::new(99));
    for ticket in [0, 2, 77] {
        pair.tap.push(Event::HandedOver { claim, ticket, token });
    }
    let mut stranger = claim;
    stranger.turn += 1;
    pair.tap.push(Event::HandedOver { claim: stranger, ticket: 1, token });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished(), "a forged hand-over was believed");
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_valid_from_the_last_answer_and_not_from_its_arrival() {
    let pair = Pair::simulated().await;
    let guard = pair.hold().await;
    let waiting = pair.wait();
    pair.queued().await;
    // No beat gets through from here on, so the ticket lives two seconds.
    pair.tap.hold_back();
    pair.faults.plan(|call| (call.method == Method::Renew).then_some(Fault::Fail));
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let [push] = &pair.tap.kept()[..] else { panic!("{:?}", pair.tap.kept()) };
    assert!(matches!(push, Event::HandedOver { .. }), "{push:?}");
    // Somebody else has it by now.
    let other = pair.holder.mutex("n").try_lock().await.unwrap();
    let other = other.expect("the unconfirmed hand-over has passed on");
    pair.tap.push(push.clone());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "two hold it");
    other.verify().await.unwrap();
    pair.faults.heal();
    drop(other);
    let guard = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(guard.expect("its turn comes").unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_nudge_that_overtakes_the_answer_counts() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let gate = pair.stall(Method::Acquire);
    let _waiting = pair.wait();
    pair.is_nudged_past(&gate).await;
}

#[tokio::test(start_paused = true)]
async fn a_nudge_during_a_beat_is_followed_by_another_beat() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let gate = pair.stall(Method::Renew);
    // The engine has answered by then; what it nudges for is news.
    pair.is_nudged_past(&gate).await;
}

#[tokio::test(start_paused = true)]
async fn a_nudge_brings_the_next_beat_forward() {
    let pair = Pair::simulated().await;
    let _guard = pair.hold().await;
    let _waiting = pair.wait();
    pair.queued().await;
    let claim = pair.holder.status("n").await.unwrap().waiters[0].claim;
    let calls = pair.faults.calls();
    pair.tap.push(Event::Nudge(claim));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pair.faults.calls(), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn a_break_that_overtakes_the_grant_is_heard() {
    let pair = Pair::simulated().await;
    let gate = pair.stall(Method::Acquire);
    let waiting = pair.wait();
    gate.reached().await;
    let victim = pair.holder.status("n").await.unwrap().holders.remove(0);
    pair.holder.revoke("n", &victim, Revoke::Now, "too early").await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    gate.open();
    let guard = waiting.await.unwrap().unwrap();
    let cause = tokio::time::timeout(Duration::from_millis(100), guard.lost()).await;
    let cause = cause.expect("learned only with a later renewal");
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
}
