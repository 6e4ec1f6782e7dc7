//! Latch and fence.

use std::time::{Duration, Instant};

use lockkeeper::engine::Kind;
use lockkeeper::{ErrorKind, Opened, Token};

use crate::stage::{Stage, within};

/// Everyone who waits is let through by the last count-down, and latecomers too.
pub async fn a_latch_opens_at_zero_for_everyone(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let name = stage.name("latch");
    let keeper = stage.keeper().await;
    let latch = keeper.latch(&name).with_options(stage.options());
    assert!(latch.set(2).await.unwrap());
    let mut waiters = Vec::new();
    for _ in 0..4 {
        let other = stage.keeper().await.latch(&name).with_options(stage.options());
        waiters.push(tokio::spawn(async move { other.wait().await }));
    }
    assert_eq!(latch.count_down("one").await.unwrap(), Some(1));
    assert_eq!(latch.count_down("one").await.unwrap(), Some(1), "counted twice");
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "open too early");
    let start = Instant::now();
    assert_eq!(latch.count_down("two").await.unwrap(), Some(0));
    for waiter in waiters {
        let opened = within(Duration::from_secs(5), "the latch", waiter).await.unwrap().unwrap();
        assert_eq!(opened, Opened::Open);
    }
    if !stage.info().polled {
        assert!(start.elapsed() < Duration::from_secs(2), "woken by re-polls only");
    }
    assert_eq!(latch.wait().await.unwrap(), Opened::Open);
    assert_eq!(latch.count_down("three").await.unwrap(), Some(0));
}

/// A latch that goes away while it is waited for is gone, not a hang.
pub async fn a_latch_that_is_removed_is_gone(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let name = stage.name("latch-gone");
    let keeper = stage.keeper().await;
    let latch = keeper.latch(&name).with_options(stage.options());
    assert!(latch.set(1).await.unwrap());
    let other = stage.keeper().await.latch(&name).with_options(stage.options());
    let waiter = tokio::spawn(async move { other.wait().await });
    let watched = Duration::from_millis(300);
    tokio::time::sleep(watched).await;
    latch.remove().await.unwrap();
    let opened = within(Duration::from_secs(5), "the removal", waiter).await.unwrap().unwrap();
    assert_eq!(opened, Opened::Gone);
    assert_eq!(latch.remaining().await.unwrap(), None);
    assert_eq!(latch.count_down("late").await.unwrap(), None);
}

/// Waiting may start before the latch is set, and ends at its deadline.
pub async fn a_latch_can_be_waited_for_before_it_is_set(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let name = stage.name("latch-early");
    let keeper = stage.keeper().await;
    let latch = keeper.latch(&name).with_options(stage.options());
    let short = stage.options().with_wait(Duration::from_millis(200));
    let error = keeper.latch(&name).with_options(short).wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    assert!(latch.set(1).await.unwrap());
    latch.count_down("x").await.unwrap();
    let opened = within(Duration::from_secs(5), "the latch", waiter).await.unwrap().unwrap();
    assert_eq!(opened, Opened::Open);
}

/// Setting a closed latch changes nothing; setting an open one starts anew.
pub async fn a_latch_is_never_reset_while_closed(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let name = stage.name("latch-set");
    let (one, two) = (stage.keeper().await.latch(&name), stage.keeper().await.latch(&name));
    assert!(one.set(2).await.unwrap());
    one.count_down("a").await.unwrap();
    assert!(!two.set(5).await.unwrap(), "a count-down in progress was reset");
    assert_eq!(two.count_down("b").await.unwrap(), Some(0));
    assert!(two.set(5).await.unwrap());
    assert_eq!(one.remaining().await.unwrap(), Some(5));
    for count in [0, lockkeeper::Latch::MAX_COUNT + 1] {
        assert_eq!(one.set(count).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(one.count_down("").await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A latch is kept for its time after the last change, then it is absent.
pub async fn a_latch_ends_when_its_time_is_over(stage: &Stage) {
    if stage.refuses(Kind::Latch).await {
        return;
    }
    let latch = stage.keeper().await.latch(stage.name("latch-keep"));
    let latch = latch.keep(Duration::from_millis(1100));
    assert!(latch.set(1).await.unwrap());
    assert_eq!(latch.count_down("x").await.unwrap(), Some(0));
    assert_eq!(latch.remaining().await.unwrap(), Some(0));
    let gone = async || latch.remaining().await.unwrap().is_none();
    assert!(crate::eventually(Duration::from_secs(6), gone).await, "kept for ever");
}

/// A fence keeps the highest token it has seen and refuses lower ones.
pub async fn a_fence_refuses_what_is_stale(stage: &Stage) {
    if stage.refuses(Kind::Fence).await {
        return;
    }
    let name = stage.name("fence");
    let (one, two) = (stage.keeper().await.fence(&name), stage.keeper().await.fence(&name));
    assert_eq!(one.highest().await.unwrap(), None);
    one.check(Token::new(17)).await.unwrap();
    two.check(Token::new(17)).await.unwrap();
    two.check(Token::new(1 << 60)).await.unwrap();
    let error = one.check(Token::new(18)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    assert_eq!(one.highest().await.unwrap(), Some(Token::new(1 << 60)));
}
