//! One session with the ensemble: every request has a limit, and everything
//! that is not a definite answer of a server is *unknown*.
//!
//! A session is never mended: once it is over, so are all its nodes, and the
//! engine opens another one.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client::{
    Acls, Client, CreateMode, Error as ZkError, OneshotWatcher, SessionState, Stat, StateWatcher,
};

use super::config::{ZooKeeper, ZooKeeperAcl};
use super::connect;
use super::fault::{Answer, Trouble};
use super::layout::OURS;
use super::pulse::Pulse;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::token::KeeperId;

/// One session of a keeper.
pub(super) struct Session {
    /// Which session of this keeper it is; its claims are renewed together.
    pub(super) generation: u32,
    /// The owner of its nodes.
    pub(super) id: i64,
    /// How long the ensemble waits for a sign of life.
    pub(super) timeout: Duration,
    /// Taken when the session is given up, which closes it.
    client: Mutex<Option<Arc<Client>>>,
    clock: Clock,
    limit: Duration,
    acls: Acls<'static>,
    pulse: Mutex<Pulse>,
    /// How often the connection has been made.
    epoch: AtomicU64,
    /// What the servers' wall clock showed, and when.
    wall: Mutex<Option<(u64, Moment)>>,
    /// The node that is written to as a proof of life.
    live: String,
    strict: bool,
    containers: AtomicBool,
}

impl Session {
    /// Opens a session.
    pub(super) async fn open(
        zookeeper: &ZooKeeper,
        generation: u32,
        keeper: KeeperId,
        clock: &Clock,
    ) -> Result<Session> {
        let sent = clock.now();
        let client = connect::connect(zookeeper).await?;
        let timeout = client.session_timeout();
        let session = Session {
            generation,
            id: client.session_id().0,
            timeout,
            client: Mutex::new(Some(Arc::new(client))),
            clock: clock.clone(),
            limit: zookeeper.command,
            acls: match zookeeper.acl {
                ZooKeeperAcl::Open => Acls::anyone_all(),
                ZooKeeperAcl::Creator => Acls::creator_all(),
            },
            pulse: Mutex::new(Pulse::new(sent, timeout, zookeeper.tick)),
            epoch: AtomicU64::new(0),
            wall: Mutex::new(None),
            live: format!("{OURS}/live-{keeper}-{generation}"),
            strict: zookeeper.strict,
            containers: AtomicBool::new(true),
        };
        match session.exists("/").await {
            Ok(Some(_)) => Ok(session),
            Ok(None) => Err(no_chroot(&zookeeper.chroot)),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Whether the session has been given up.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.client).as_ref().is_none_or(|client| client.state().is_terminated())
    }

    /// Gives the session up; its end is told by the watcher.
    pub(super) fn close(&self) -> Option<StateWatcher> {
        let client = lock(&self.client).take()?;
        Some(client.state_watcher())
    }

    /// Tells of the connection's ups and downs.
    pub(super) fn watch_state(&self) -> Option<StateWatcher> {
        lock(&self.client).as_ref().map(|client| client.state_watcher())
    }

    /// How often the connection has been made: what was verified on an older
    /// one is verified again.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn connected_anew(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    fn client(&self) -> Answer<Arc<Client>> {
        let Some(client) = lock(&self.client).clone() else { return Err(Trouble::Over) };
        match client.state() {
            // The client would keep the request for later; nobody wants it
            // when its caller has given up.
            SessionState::Disconnected => {
                let text = "the connection to the ensemble is down: its members do not answer, \
                            or have no quorum";
                Err(Error::new(ErrorKind::Unreachable, text).into())
            }
            _ => Ok(client),
        }
    }

    /// Waits for an answer, for a while.
    async fn ask<T>(
        &self,
        sent: Moment,
        answer: impl Future<Output = std::result::Result<T, ZkError>>,
    ) -> Answer<T> {
        match tokio::time::timeout(self.limit, answer).await {
            Ok(answer) => {
                let answer = answer.map_err(Trouble::from);
                if answer.as_ref().map_or_else(Trouble::is_definite, |_| true) {
                    lock(&self.pulse).answered(sent, self.clock.now());
                }
                answer
            }
            Err(_) => {
                let text = format!("no answer within {:?}", self.limit);
                Err(Error::new(ErrorKind::Unknown, text).into())
            }
        }
    }

    /// Makes a node; answers with its stat, and the number it was given.
    pub(super) async fn create(
        &self,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> Answer<(Stat, i64)> {
        let (client, sent) = (self.client()?, self.clock.now());
        let created = client.create(path, data, &mode.with_acls(self.acls));
        let (stat, sequence) = self.ask(sent, created).await?;
        self.saw_wall(stat.ctime);
        if stat.ephemeral_owner != 0 && stat.ephemeral_owner != self.id {
            // Some servers answer a reconnect with another session.
            tracing::warn!(session = %format_args!("{:#x}", self.id), "replaced by the server");
            self.close();
            return Err(Trouble::Over);
        }
        Ok((stat, sequence.into_i64()))
    }

    /// Makes the node of a name or of a queue, and those above it: nodes that
    /// the servers take away when they are empty, where they can.
    pub(super) async fn make_dir(&self, path: &str) -> Answer<()> {
        let made = if self.containers.load(Ordering::Relaxed) {
            self.make(path, CreateMode::Container).await
        } else {
            self.make(path, CreateMode::Persistent).await
        };
        match made {
            Err(Trouble::Other(error)) if error.kind() == ErrorKind::Unexpected => {
                tracing::debug!(%error, "the servers have no container nodes");
                self.containers.store(false, Ordering::Relaxed);
                self.make(path, CreateMode::Persistent).await
            }
            made => made,
        }
    }

    async fn make(&self, path: &str, mode: CreateMode) -> Answer<()> {
        let (client, sent) = (self.client()?, self.clock.now());
        match self.ask(sent, client.mkdir(path, &mode.with_acls(self.acls))).await {
            Err(Trouble::NoNode) => Err(no_chroot("").into()),
            made => made,
        }
    }

    pub(super) async fn delete(&self, path: &str) -> Answer<()> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.delete(path, None)).await
    }

    pub(super) async fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.check_stat(path)).await
    }

    /// The watcher tells when the node is made, changed or deleted.
    pub(super) async fn exists_and_watch(
        &self,
        path: &str,
    ) -> Answer<(Option<Stat>, OneshotWatcher)> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.check_and_watch_stat(path)).await
    }

    pub(super) async fn data(&self, path: &str) -> Answer<(Vec<u8>, Stat)> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.get_data(path)).await
    }

    /// The watcher tells when the node is changed or deleted.
    pub(super) async fn data_and_watch(
        &self,
        path: &str,
    ) -> Answer<(Vec<u8>, Stat, OneshotWatcher)> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.get_and_watch_data(path)).await
    }

    pub(super) async fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat> {
        let (client, sent) = (self.client()?, self.clock.now());
        let stat = self.ask(sent, client.set_data(path, data, version)).await?;
        self.saw_wall(stat.mtime);
        Ok(stat)
    }

    pub(super) async fn children(&self, path: &str) -> Answer<Vec<String>> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.list_children(path)).await
    }

    /// The children of a node, and how long its own data is.
    pub(super) async fn children_and_length(&self, path: &str) -> Answer<(Vec<String>, i32)> {
        let (client, sent) = (self.client()?, self.clock.now());
        let (children, stat) = self.ask(sent, client.get_children(path)).await?;
        Ok((children, stat.data_length))
    }

    /// The watcher tells when a child is made or deleted.
    pub(super) async fn children_and_watch(
        &self,
        path: &str,
    ) -> Answer<(Vec<String>, OneshotWatcher)> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.list_and_watch_children(path)).await
    }

    /// Lets our server catch up with the leader.
    pub(super) async fn sync(&self) -> Answer<()> {
        let (client, sent) = (self.client()?, self.clock.now());
        self.ask(sent, client.sync("/")).await
    }

    /// Makes `paths` of this mode and data, in one transaction, provided that
    /// `there` exists; deletes that too if asked to.
    pub(super) async fn create_beside(
        &self,
        paths: impl Iterator<Item = &str>,
        data: &[u8],
        mode: CreateMode,
        there: &str,
        and_delete: bool,
    ) -> Answer<Vec<String>> {
        use zookeeper_client::MultiWriteResult::Create;
        let (client, sent) = (self.client()?, self.clock.now());
        let mut writer = client.new_multi_writer();
        writer.add_check_version(there, -1)?;
        for path in paths {
            writer.add_create(path, data, &mode.with_acls(self.acls))?;
        }
        if and_delete {
            writer.add_delete(there, None)?;
        }
        let done = async { writer.commit().await.map_err(ZkError::from) };
        let results = self.ask(sent, done).await?;
        let made = results.into_iter().filter_map(|result| match result {
            Create { path, .. } => Some(path),
            _ => None,
        });
        Ok(made.collect())
    }

    /// Asks what only the leader can answer.
    pub(super) async fn prove(&self) -> Answer<()> {
        if self.strict { self.write_life().await.map(drop) } else { self.sync().await }
    }

    /// Until when the session lasts, if the leader has answered what was sent then.
    pub(super) fn trusted(&self, sent: Moment) -> Moment {
        lock(&self.pulse).trusted(sent)
    }

    /// How often the session gives a sign of life.
    pub(super) fn beat(&self) -> Duration {
        self.timeout / 6
    }

    /// Keeps the session's pulse going while nobody asks anything.
    pub(super) async fn beat_on(self: Arc<Self>) {
        while !self.is_over() {
            let quiet = self.clock.now().since(lock(&self.pulse).last());
            if quiet >= self.beat() {
                // Whatever it says, it is a sign of life.
                if self.exists("/").await.is_err() {
                    tokio::time::sleep(self.beat() / 4).await;
                }
                continue;
            }
            tokio::time::sleep(self.beat() - quiet).await;
        }
    }

    /// Writes to a node of this session, which a majority has to commit.
    async fn write_life(&self) -> Answer<Stat> {
        match self.set(&self.live, &[], None).await {
            Err(Trouble::NoNode) => {}
            written => return written,
        }
        match self.create(&self.live, &[], CreateMode::Ephemeral).await {
            Err(Trouble::NoNode) => self.make_dir(OURS).await?,
            Ok(_) | Err(Trouble::Exists) => {}
            Err(trouble) => return Err(trouble),
        }
        match self.create(&self.live, &[], CreateMode::Ephemeral).await {
            Ok(_) | Err(Trouble::Exists) => self.set(&self.live, &[], None).await,
            Err(trouble) => Err(trouble),
        }
    }

    /// What the servers' wall clock shows, in milliseconds; this host's if
    /// they have not told.
    pub(super) fn wall_now(&self) -> u64 {
        let seen = *lock(&self.wall);
        seen.map_or_else(local_wall, |(wall, when)| {
            let passed = self.clock.now().since(when).as_millis();
            wall.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
        })
    }

    /// Makes sure that the servers have told what their wall clock shows.
    pub(super) async fn ask_wall(&self) {
        let recent = lock(&self.wall)
            .is_some_and(|(_, when)| self.clock.now().since(when) < Duration::from_secs(600));
        if !recent && let Err(trouble) = self.write_life().await {
            tracing::debug!(?trouble, "the servers' wall clock is not known");
        }
    }

    fn saw_wall(&self, millis: i64) {
        if let Ok(millis @ 1..) = u64::try_from(millis) {
            *lock(&self.wall) = Some((millis, self.clock.now()));
        }
    }
}

fn local_wall() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn no_chroot(chroot: &str) -> Error {
    let node = if chroot.is_empty() { String::new() } else { format!(" {chroot:?}") };
    invalid(format!(
        "the node{node} that the URL ends in does not exist; create it first, for example with \
         zkCli.sh create"
    ))
}

/// Nothing in here can panic while it holds one of these.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("generation", &self.generation)
            .field("id", &format_args!("{:#x}", self.id))
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
