//! Beside `memory:` stand tokio's own primitives.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Floor, Ring, Words};
use crate::bench::meter::Meter;
use crate::exit::{self, Failure};

pub(super) struct MemoryFloor {
    url: String,
}

impl MemoryFloor {
    pub(super) fn new(url: &str) -> Self {
        // Keepers of `memory:` share nothing, and waiters must.
        let url = if url == "memory:" { "memory:lockkeeper-bench" } else { url };
        MemoryFloor { url: url.to_owned() }
    }
}

#[async_trait]
impl Floor for MemoryFloor {
    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> Words {
        Words {
            pair: "a tokio Mutex, locked and dropped",
            hand_over: Some("a message through a tokio channel to another thread"),
        }
    }

    fn is_private(&self) -> bool {
        true
    }

    async fn pairs(&self, _name: &str, meter: &mut Meter) -> Result<(), Failure> {
        let mutex = tokio::sync::Mutex::new(());
        while meter.runs() {
            drop(mutex.lock().await);
            meter.tick();
        }
        Ok(())
    }

    async fn sit(&self, ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure> {
        let (sender, receiver) = unbounded_channel();
        seats().insert((ring.to_owned(), seat), sender);
        let ring = ring.to_owned();
        Ok(Some(Box::new(Seat { ring, seat, receiver })))
    }

    async fn clean(&self, _names: &[String]) -> Result<(), Failure> {
        Ok(())
    }
}

type Seats = HashMap<(String, usize), UnboundedSender<String>>;

/// The other ends of all seats: every seat is in this process.
fn seats() -> std::sync::MutexGuard<'static, Seats> {
    static SEATS: LazyLock<Mutex<Seats>> = LazyLock::new(Mutex::default);
    SEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Seat {
    ring: String,
    seat: usize,
    receiver: UnboundedReceiver<String>,
}

#[async_trait]
impl Ring for Seat {
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure> {
        let next = seats().get(&(self.ring.clone(), to)).cloned();
        let passed = next.is_some_and(|next| next.send(what.to_owned()).is_ok());
        if passed { Ok(()) } else { Err(gone()) }
    }

    async fn receive(&mut self) -> Result<String, Failure> {
        self.receiver.recv().await.ok_or_else(gone)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        seats().remove(&(self.ring.clone(), self.seat));
    }
}

fn gone() -> Failure {
    Failure::new(exit::FAILED, "bench", "bench: the next seat in the ring is empty")
}
