//! Beside `zookeeper:` stand a raw create and delete, and a changed node that
//! the next process watches, through the same client library.

use std::time::Duration;

use ::zookeeper_client::{Client, CreateMode, Error as ZkError};
use async_trait::async_trait;
use lockkeeper::{LockName, ZooKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Counters, Floor, Ring, Side, Words, broken};
use crate::bench::meter::Meter;
use crate::exit::Failure;

/// How long a member may take to answer a question about itself.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) struct ZooKeeperFloor {
    url: String,
    zookeeper: ZooKeeper,
    client: Client,
}

impl ZooKeeperFloor {
    pub(super) async fn open(url: &str) -> Result<Self, Failure> {
        let zookeeper = ZooKeeper::parse(url).map_err(Failure::connecting)?;
        let client = zookeeper.bare().await.map_err(Failure::connecting)?;
        Ok(ZooKeeperFloor { url: url.to_owned(), zookeeper, client })
    }

    /// A node of our own beside that of a name.
    fn node(&self, name: &str) -> Result<String, Failure> {
        Ok(format!("{}:floor", self.zookeeper.node_of(&LockName::new(name)?)))
    }

    async fn make(&self, node: &str) -> Result<(), Failure> {
        let mode = CreateMode::Persistent.with_acls(self.zookeeper.acls());
        match self.client.create(node, b"", &mode).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }

    /// What every member says to a word of four letters; `None` if one does not.
    async fn ask(&self, word: &str) -> Option<Vec<String>> {
        let members = self.zookeeper.plain_members();
        let mut answers = Vec::new();
        for (host, port) in members {
            let answer = async {
                let mut stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await?;
                stream.write_all(word.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                Ok::<_, std::io::Error>(answer)
            };
            answers.push(tokio::time::timeout(LIMIT, answer).await.ok()?.ok()?);
        }
        (!answers.is_empty()).then_some(answers)
    }
}

#[async_trait]
impl Floor for ZooKeeperFloor {
    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> Words {
        Words {
            pair: "create of an ephemeral sequential node, then its delete",
            hand_over: Some("a node's data set, and read by the next process, which watches it"),
        }
    }

    async fn server(&self) -> Result<Option<String>, Failure> {
        let answers = self.ask("srvr").await.unwrap_or_default();
        let version = answers.first().and_then(|answer| answer.split_once("keeper version: "));
        let version = version.and_then(|(_, rest)| rest.split(['-', ',', '\n']).next());
        Ok(version.map(|version| format!("ZooKeeper {version}")))
    }

    /// Packets that the members have received, heartbeats included.
    async fn counters(&self, _side: Side) -> Result<Option<Counters>, Failure> {
        let Some(answers) = self.ask("srvr").await else { return Ok(None) };
        let received = |answer: &String| {
            let line = answer.lines().find_map(|line| line.strip_prefix("Received: "));
            line.and_then(|number| number.trim().parse::<u64>().ok())
        };
        let Some(received) = answers.iter().map(received).sum::<Option<u64>>() else {
            return Ok(None);
        };
        // The question is one of them, on every member.
        let commands = received.saturating_sub(answers.len() as u64);
        Ok(Some(Counters { commands, cpu: None }))
    }

    async fn pairs(&self, name: &str, meter: &mut Meter) -> Result<(), Failure> {
        let dir = self.node(name)?;
        self.make(&dir).await?;
        let mode = CreateMode::EphemeralSequential.with_acls(self.zookeeper.acls());
        let prefix = format!("{dir}/lock-");
        while meter.runs() {
            let created = self.client.create(&prefix, b"floor", &mode).await;
            let (_, number) = created.map_err(broken)?;
            self.client.delete(&format!("{prefix}{number}"), None).await.map_err(broken)?;
            meter.tick();
        }
        Ok(())
    }

    async fn sit(&self, ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure> {
        let client = self.zookeeper.bare().await.map_err(Failure::connecting)?;
        let dir = self.node(ring)?;
        self.make(&dir).await?;
        let node = |seat: usize| format!("{dir}/{seat}");
        // Ephemeral: whoever ends takes its seat along.
        let mode = CreateMode::Ephemeral.with_acls(self.zookeeper.acls());
        client.create(&node(seat), b"", &mode).await.map_err(broken)?;
        let seen = client.get_and_watch_data(&node(seat)).await.map_err(broken)?;
        let (_, stat, watcher) = seen;
        Ok(Some(Box::new(Seat {
            client,
            dir,
            seat,
            version: stat.version,
            watcher: Some(watcher),
        })))
    }

    async fn clean(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            let ours = self.zookeeper.node_of(&LockName::new(name)?);
            let ring = self.node(&crate::bench::handover::ring_of(name))?;
            for node in [ours, self.node(name)?, ring] {
                match self.client.delete(&node, None).await {
                    // What still has children is on its way out with a session.
                    Ok(()) | Err(ZkError::NoNode | ZkError::NotEmpty) => {}
                    Err(error) => return Err(broken(error)),
                }
            }
        }
        Ok(())
    }
}

struct Seat {
    client: Client,
    dir: String,
    seat: usize,
    version: i32,
    watcher: Option<::zookeeper_client::OneshotWatcher>,
}

#[async_trait]
impl Ring for Seat {
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure> {
        let node = format!("{}/{to}", self.dir);
        self.client.set_data(&node, what.as_bytes(), None).await.map_err(broken)?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<String, Failure> {
        let node = format!("{}/{}", self.dir, self.seat);
        loop {
            if let Some(watcher) = self.watcher.take() {
                watcher.changed().await;
            }
            let seen = self.client.get_and_watch_data(&node).await.map_err(broken)?;
            let (data, stat, watcher) = seen;
            self.watcher = Some(watcher);
            if stat.version != self.version {
                self.version = stat.version;
                return Ok(String::from_utf8_lossy(&data).into_owned());
            }
        }
    }
}
