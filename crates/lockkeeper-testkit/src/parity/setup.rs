//! What a sequence starts with.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lockkeeper::engine::{About, CellOp, Claim, CountId, Event, Kind, Mode};
use lockkeeper::{ClaimId, Engine, KeeperId, LockName};
use tokio::sync::mpsc::UnboundedReceiver;

/// Makes sure that pushes reach every keeper: some engines begin to listen
/// only when there is something to hear.
pub(super) async fn listening(
    seed: u64,
    keepers: &mut [(Arc<dyn Engine>, UnboundedReceiver<Event>)],
) {
    for index in 0..keepers.len() {
        let other = keepers[(index + 1) % keepers.len()].0.clone();
        let (engine, pushed) = &mut keepers[index];
        let name = LockName::new(format!("listening {seed} {index}")).unwrap();
        let look = CellOp::Look { kind: Kind::Latch, watch: true };
        for round in 0_u32.. {
            engine.cell(&name, look.clone()).await.unwrap();
            let by = CountId(round.to_string().into());
            let keep = Duration::from_secs(60);
            other.cell(&name, CellOp::SetLatch { count: 1, keep, by }).await.unwrap();
            let heard = tokio::time::timeout(Duration::from_millis(300), pushed.recv()).await;
            if heard.is_ok() {
                break;
            }
            assert!(round < 50, "no push arrives");
            other.cell(&name, CellOp::RemoveLatch).await.unwrap();
        }
        other.cell(&name, CellOp::RemoveLatch).await.unwrap();
        while pushed.try_recv().is_ok() {}
    }
}

/// Nine claims of three keepers, mostly of one family.
pub(super) fn claims(random: &mut Rng, seed: u64, name: &LockName) -> Vec<Arc<Claim>> {
    let favourite = random.usize(..3);
    let mut claims: Vec<Arc<Claim>> = Vec::new();
    for number in 0..9_u64 {
        let keeper = KeeperId::from_number(u128::from(seed) * 10 + u128::from(number % 3));
        let family = if random.u8(..12) == 0 { random.usize(..3) } else { favourite };
        let mode = match family {
            0 => Mode::Exclusive,
            1 if random.u8(..3) == 0 => Mode::Write,
            1 => Mode::Read,
            _ => Mode::Permits {
                count: random.u32(1..4),
                of: if random.u8(..10) == 0 { 2 } else { 3 },
            },
        };
        let under = match mode {
            Mode::Read if random.u8(..3) == 0 => {
                claims.iter().find(|claim| claim.mode == Mode::Write).map(|claim| claim.id)
            }
            _ => None,
        };
        claims.push(Arc::new(Claim {
            id: ClaimId { keeper, number, turn: random.u32(..3) },
            name: name.clone(),
            mode,
            lease: Duration::from_millis([110, 250, 600, 30_000][random.usize(..4)]),
            margin: Duration::from_millis(10),
            lock_delay: Duration::from_millis([0, 0, 150][random.usize(..3)]),
            max_waiters: [2, 100][random.usize(..2)],
            under,
            about: Arc::new(About {
                who: format!("who {number}"),
                host: String::new(),
                pid: random.u32(..),
                note: ["", "a note, é 100 %\n"][random.usize(..2)].to_owned(),
            }),
        }));
    }
    claims
}
