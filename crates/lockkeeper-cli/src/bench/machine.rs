//! What the figures were measured on.

use serde_json::{Value, json};

/// The load of a machine, as it says itself: runnable processes, over a minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    cores: usize,
    before: Option<f64>,
    after: Option<f64>,
}

impl Machine {
    /// Looks, before anything is measured.
    pub(super) fn look() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine { cores, before: load(), after: None }
    }

    /// Looks again, after.
    pub(super) fn look_again(&mut self) {
        self.after = load();
    }

    pub(super) fn sentence(&self) -> String {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let mut text = format!("{} {cores}", self.cores);
        if let (Some(before), Some(after)) = (self.before, self.after) {
            text.push_str(&format!(", load {before:.2} before and {after:.2} after"));
        }
        text
    }

    /// Whether others kept the machine busy before we did.
    pub(super) fn was_busy(&self) -> Option<bool> {
        self.before.map(|load| load >= self.cores as f64 / 2.0)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "cores": self.cores, "load_before": self.before, "load_after": self.after,
            "busy": self.was_busy(),
        })
    }
}

/// The average of the last minute; `None` where the system does not tell.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
