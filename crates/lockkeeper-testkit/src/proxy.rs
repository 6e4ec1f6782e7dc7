//! A network that fails on command: a proxy between a keeper and its server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What happens to what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Weather {
    /// It passes.
    Fair,
    /// Nothing passes and nobody is told.
    Silent,
    /// The next request that the armed word is in is not passed on: its
    /// connection is cut.
    LoseRequest,
    /// The next request that the armed word is in is passed on; the connection
    /// is cut before the answer.
    LoseReply,
    /// Nobody gets in.
    Refuse,
}

/// A proxy in front of one server. Ends with this value.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    weather: AtomicU8,
    word: Mutex<Vec<u8>>,
    /// Counts cuts: a connection ends at the first one of its life.
    cuts: watch::Sender<u64>,
    held: watch::Sender<Held>,
}

/// Requests that are held up.
#[derive(Debug, Default)]
struct Held {
    /// How many more may pass; all, if nothing is said.
    left: Option<u32>,
    /// Whether one was stopped.
    stopped: bool,
}

impl Proxy {
    /// Listens on a free port in front of `target`.
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            target: SocketAddr::from(([127, 0, 0, 1], target)),
            weather: AtomicU8::new(Weather::Fair as u8),
            word: Mutex::default(),
            cuts: watch::channel(0).0,
            held: watch::channel(Held::default()).0,
        });
        let task = tokio::spawn(accept(listener, state.clone())).abort_handle();
        Proxy { address, state, task }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of the Redis behind it.
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// Changes the weather, for connections old and new.
    pub fn set(&self, weather: Weather) {
        self.state.weather.store(weather as u8, Ordering::SeqCst);
    }

    /// Lets the weather hit the next request with `word` in it.
    pub fn arm(&self, weather: Weather, word: &str) {
        *self.state.word.lock().unwrap_or_else(PoisonError::into_inner) = word.as_bytes().to_vec();
        self.set(weather);
    }

    /// Whether the armed weather is still to come.
    pub fn is_armed(&self) -> bool {
        self.state.is(Weather::LoseRequest) || self.state.is(Weather::LoseReply)
    }

    /// Lets `count` more requests pass and holds up those that follow, until
    /// [`let_go`](Self::let_go).
    pub fn hold_after(&self, count: u32) {
        self.state.held.send_replace(Held { left: Some(count), stopped: false });
    }

    /// Whether a request is held up, or was.
    pub fn is_holding(&self) -> bool {
        self.state.held.borrow().stopped
    }

    /// Lets everything pass that was held up.
    pub fn let_go(&self) {
        self.state.held.send_modify(|held| held.left = None);
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

impl State {
    fn is(&self, weather: Weather) -> bool {
        self.weather.load(Ordering::SeqCst) == weather as u8
    }

    /// Takes the armed weather, if `bytes` hold the word it waits for.
    fn hits(&self, weather: Weather, bytes: &[u8]) -> bool {
        let word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        let here = word.is_empty() || bytes.windows(word.len()).any(|window| window == &word[..]);
        let (from, to) = (weather as u8, Weather::Fair as u8);
        here && self.weather.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl State {
    /// Waits until a request may pass.
    async fn pass(&self) {
        let mut changes = self.held.subscribe();
        loop {
            let mut passes = true;
            self.held.send_if_modified(|held| {
                match &mut held.left {
                    Some(0) => (passes, held.stopped) = (false, true),
                    Some(left) => *left -= 1,
                    None => {}
                }
                false
            });
            if passes || changes.changed().await.is_err() {
                return;
            }
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if !state.is(Weather::Refuse) {
            tokio::spawn(join(client, state.clone()));
        }
    }
}

/// Passes everything on until either side, or the weather, ends it.
async fn join(client: TcpStream, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    let Ok(server) = TcpStream::connect(state.target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Set when the answers of this connection are to be lost.
    let (lose, lost) = watch::channel(false);
    tokio::select! {
        () = requests(from_client, to_server, &state, lose) => {}
        () = answers(from_server, to_client, &state, lost) => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    lose: watch::Sender<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..count];
        state.pass().await;
        if state.hits(Weather::LoseRequest, bytes) {
            return;
        }
        if state.hits(Weather::LoseReply, bytes) {
            lose.send_replace(true);
        }
        if !state.is(Weather::Silent) && to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    lost: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if *lost.borrow() {
            // The answer shows that the request was carried out.
            return;
        }
        if !state.is(Weather::Silent) && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
