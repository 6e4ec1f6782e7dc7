//! Three ZooKeeper servers that belong together.

use super::server::{Settings, TICK, USUAL, ZooKeeper, url};
use crate::proxy::{Proxy, Weather};
use crate::server::{folder, free_port};

/// How many members an ensemble has.
const MEMBERS: usize = 3;

/// Three servers, one of which leads.
#[derive(Debug)]
pub struct Ensemble {
    /// Its members; which one leads changes.
    pub members: Vec<ZooKeeper>,
}

/// The ports on which members speak to each other.
#[derive(Clone, Copy, Debug)]
struct Inner {
    quorum: u16,
    election: u16,
}

impl Inner {
    fn pick() -> Self {
        Inner { quorum: free_port(), election: free_port() }
    }

    fn line(&self, index: usize) -> String {
        format!("server.{}=127.0.0.1:{}:{}", index + 1, self.quorum, self.election)
    }
}

impl Ensemble {
    /// Starts three members and waits until all serve.
    ///
    /// # Panics
    /// When Java or a jar is missing, or they do not come up.
    pub fn start() -> Self {
        Ensemble::with(&Settings::default())
    }

    /// Starts three members with further settings.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn with(settings: &Settings) -> Self {
        let mut said = String::new();
        // Somebody else may take a port between the look and the start.
        for _ in 0..5 {
            let inner: Vec<Inner> = (0..MEMBERS).map(|_| Inner::pick()).collect();
            let mut members: Vec<ZooKeeper> =
                (0..MEMBERS).map(|index| launch(index, &inner, settings)).collect();
            if members.iter_mut().all(ZooKeeper::comes_up) {
                return Ensemble { members };
            }
            said = members.iter().map(ZooKeeper::log).collect();
        }
        panic!("the ensemble does not come up: {said}");
    }

    /// Its URL, with the session that tests use.
    pub fn url(&self) -> String {
        url(&self.ports(), USUAL)
    }

    /// The ports for clients.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(ZooKeeper::port).collect()
    }

    /// Which member leads, if one does.
    pub fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| member.mode().as_deref() == Some("leader"))
    }

    /// Which member a client with this session is connected to.
    pub fn host_of(&self, session: &str) -> Option<usize> {
        self.members.iter().position(|member| member.sessions().iter().any(|id| id == session))
    }
}

/// An ensemble whose first member follows, and reaches the others only through
/// proxies: it can be cut off from its leader while its clients reach it.
#[derive(Debug)]
pub struct Outpost {
    /// The members; the first is the one that can be cut off.
    pub ensemble: Ensemble,
    proxies: Vec<Proxy>,
}

impl Outpost {
    /// Starts the three, the outpost last, so that it follows.
    ///
    /// # Panics
    /// When Java or a jar is missing, or they do not come up.
    pub async fn start() -> Self {
        let mut said = String::new();
        for _ in 0..5 {
            let inner: Vec<Inner> = (0..MEMBERS).map(|_| Inner::pick()).collect();
            let mut through = inner.clone();
            let mut proxies = Vec::new();
            for other in &mut through[1..] {
                let proxy = Proxy::start(other.quorum).await;
                other.quorum = proxy.port();
                proxies.push(proxy);
            }
            let started = tokio::task::spawn_blocking(move || {
                let usual = Settings::default();
                let mut members: Vec<ZooKeeper> =
                    (1..MEMBERS).map(|index| launch(index, &inner, &usual)).collect();
                let mut up = members.iter_mut().all(ZooKeeper::comes_up);
                if up {
                    members.insert(0, launch(0, &through, &usual));
                    up = members[0].comes_up() && members[0].mode().as_deref() == Some("follower");
                }
                (up, members)
            });
            let (up, members) = started.await.expect("the members are started");
            if up {
                return Outpost { ensemble: Ensemble { members }, proxies };
            }
            said = members.iter().map(ZooKeeper::log).collect();
        }
        panic!("the ensemble does not come up: {said}");
    }

    /// The member that can be cut off.
    pub fn member(&self) -> &ZooKeeper {
        &self.ensemble.members[0]
    }

    /// The URL of the others.
    pub fn others(&self) -> String {
        url(&self.ensemble.ports()[1..], USUAL)
    }

    /// Cuts the outpost off: nothing passes, and nobody is told.
    pub fn cut_off(&self) {
        self.proxies.iter().for_each(|proxy| proxy.set(Weather::Silent));
    }

    /// Lets the outpost reach the others again.
    pub fn reconnect(&self) {
        for proxy in &self.proxies {
            // What was swallowed is missing from the old connections for ever.
            proxy.cut();
            proxy.set(Weather::Fair);
        }
    }
}

fn launch(index: usize, inner: &[Inner], settings: &Settings) -> ZooKeeper {
    // Members that a busy machine holds up for a while are not given up: these
    // limits are 10 s and 5 s, unless the settings, which come last, say otherwise.
    let mut own = Settings::default()
        .line(format!("initLimit={}", 10_000 / TICK.as_millis()))
        .line(format!("syncLimit={}", 5_000 / TICK.as_millis()));
    own.lines.extend(inner.iter().enumerate().map(|(index, inner)| inner.line(index)));
    own.lines.extend_from_slice(&settings.lines);
    let settings = Settings { lines: own.lines, ..settings.clone() };
    ZooKeeper::launch(folder("zookeeper"), free_port(), Some(index + 1), settings)
}
