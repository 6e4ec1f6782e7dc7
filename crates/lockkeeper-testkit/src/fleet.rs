//! Several Redis servers that belong together: a master with its replica and
//! sentinels, a cluster, a server that speaks TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::{RedisServer, folder, free_port};

/// A master with replicas that follow it.
#[derive(Debug)]
pub struct Replicated {
    /// The master.
    pub master: RedisServer,
    /// Its replicas.
    pub replicas: Vec<RedisServer>,
}

impl Replicated {
    /// Starts them, and waits until the replicas keep up.
    ///
    /// # Panics
    /// When they do not within half a minute.
    pub fn start(replicas: usize) -> Self {
        let quick = ["--save", "", "--repl-diskless-sync-delay", "0"];
        let master = RedisServer::with(&quick);
        let port = master.port().to_string();
        let follow = [&quick[..], &["--replicaof", "127.0.0.1", &port]].concat();
        let replicas: Vec<RedisServer> =
            (0..replicas).map(|_| RedisServer::with(&follow)).collect();
        // A replica that is new to its master takes a second or two to keep up.
        master.cli(&["SET", "follow", "me"]);
        until("the replicas keep up", || {
            let info = master.cli(&["INFO", "replication"]);
            let field = |name: &str| {
                info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
            };
            let written = format!("offset={},", field("master_repl_offset:"));
            info.matches(&written).count() >= replicas.len()
        });
        Replicated { master, replicas }
    }
}

/// A master, a replica and three sentinels that watch them.
#[derive(Debug)]
pub struct Sentinels {
    /// The two servers; which one is the master changes.
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

impl Sentinels {
    /// Starts all five, and waits until they know each other.
    ///
    /// # Panics
    /// When they do not within half a minute.
    pub fn start() -> Self {
        let Replicated { master, replicas } = Replicated::start(1);
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(master.port())).collect();
        let servers = [master].into_iter().chain(replicas).collect();
        let fleet = Sentinels { servers, sentinels };
        until("the sentinels know each other", || {
            fleet.sentinels.iter().all(|sentinel| {
                let info = sentinel.cli(&["INFO", "sentinel"]);
                info.contains("status=ok") && info.contains("slaves=1,sentinels=3")
            })
        });
        fleet
    }

    /// Their URL.
    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/main", places.join(","))
    }

    /// Which of the servers the sentinels call master.
    pub fn master(&self) -> usize {
        let answer = self.sentinels[0].cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let port = answer.lines().nth(1).and_then(|port| port.trim().parse().ok());
        self.servers
            .iter()
            .position(|server| Some(server.port()) == port)
            .expect("the master is one of ours")
    }
}

#[derive(Debug)]
struct Sentinel {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl Sentinel {
    fn start(master: u16) -> Self {
        let (port, folder) = (free_port(), folder("sentinel"));
        let path = folder.join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.display()),
            format!("sentinel monitor main 127.0.0.1 {master} 2"),
            "sentinel down-after-milliseconds main 600".to_owned(),
            "sentinel failover-timeout main 3000".to_owned(),
        ];
        fs::write(&path, lines.join("\n")).expect("a file for the sentinel");
        let child = Command::new("redis-server")
            .arg(&path)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed (scripts/setup does it)");
        Sentinel { port, folder, child }
    }

    fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, arguments)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A cluster of three masters with a replica each.
#[derive(Debug)]
pub struct RedisCluster {
    /// Its nodes; which ones are masters changes.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts all six, and waits until the cluster is whole.
    ///
    /// # Panics
    /// When it is not within half a minute.
    pub fn start() -> Self {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-replica-validity-factor",
            "0",
            "--save",
            "",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let nodes: Vec<RedisServer> = (0..6).map(|_| RedisServer::with(&arguments)).collect();
        let places: Vec<String> =
            nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&places)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = RedisCluster { nodes };
        until("the cluster is whole", || {
            cluster.nodes.iter().all(|node| {
                let replication = node.cli(&["INFO", "replication"]);
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && node.cli(&["CLUSTER", "SHARDS"]).matches("replica").count() >= 3
                    && (replication.contains("connected_slaves:1")
                        || replication.contains("master_link_status:up"))
            })
        });
        cluster
    }

    /// Its URL, with two of its nodes.
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
            self.nodes[5].port(),
            self.nodes[0].port()
        )
    }

    /// Which node has this key.
    pub fn master_of(&self, key: &str) -> usize {
        let slot = self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
        self.nodes
            .iter()
            .position(|node| {
                // Only its master counts the keys of a slot without a redirection.
                let answer = node.cli(&["GET", key]);
                let role = node.cli(&["ROLE"]);
                role.starts_with("master") && !answer.contains("MOVED")
            })
            .unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }
}

/// A server that speaks nothing but TLS, and the certificate to trust.
#[derive(Debug)]
pub struct TlsServer {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl TlsServer {
    /// Starts a server whose one user may touch nothing beside our prefix.
    ///
    /// # Panics
    /// When openssl or the server cannot be used.
    pub fn start() -> Self {
        let (port, folder) = (free_port(), folder("tls"));
        certificate(&folder);
        let file = |name: &str| folder.join(name).display().to_string();
        let acl = "user default off\nuser keeper on >se%cret ~lk:* &lk:* -@all +@connection \
                   +@scripting +@string +@hash +@sortedset +@keyspace +@pubsub +info +time \
                   -flushall -flushdb -keys -swapdb\n";
        fs::write(folder.join("users.acl"), acl).expect("a file for the users");
        let log = fs::File::create(folder.join("log")).expect("a log file");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--tls-cert-file", &file("cert.pem"), "--tls-key-file", &file("key.pem")])
            .args(["--tls-ca-cert-file", &file("cert.pem"), "--tls-auth-clients", "no"])
            .args(["--aclfile", &file("users.acl"), "--save", "", "--dir", &file("")])
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .expect("redis-server is installed (scripts/setup does it)");
        let server = TlsServer { port, folder, child };
        until("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    /// Its URL, with the login of the limited user.
    pub fn url(&self) -> String {
        let ca = self.folder.join("cert.pem").display().to_string();
        // Hundreds of handshakes at once take their time on a busy machine.
        format!("rediss://keeper:se%25cret@localhost:{}/0?ca={ca}&connect=5s", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes a certificate for this host that signs itself.
pub(crate) fn certificate(folder: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("key.pem"))
        .arg("-out")
        .arg(folder.join("cert.pem"))
        .output()
        .expect("openssl is installed (scripts/setup does it)");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(arguments)
        .output()
        .expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}
