//! One ZooKeeper server, alone or as the member of an ensemble.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::java;
use crate::fleet::certificate;
use crate::server::{folder, free_port};

/// How long one tick of the servers is. Sessions end to within a tick.
pub(super) const TICK: Duration = Duration::from_millis(200);

/// What a server is told beside the usual. `{folder}` in it means the server's
/// folder, `{port}` a free port.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Lines of its configuration file.
    pub lines: Vec<String>,
    /// Java properties, as `name=value`.
    pub properties: Vec<String>,
    /// Further jars, each with the package it is in.
    pub jars: Vec<(&'static str, &'static str)>,
}

impl Settings {
    /// Adds a line to the configuration file.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds a Java property.
    #[must_use]
    pub fn property(mut self, property: impl Into<String>) -> Self {
        self.properties.push(property.into());
        self
    }
}

/// A ZooKeeper server.
#[derive(Debug)]
pub struct ZooKeeper {
    folder: PathBuf,
    port: u16,
    settings: Settings,
    child: Child,
}

impl ZooKeeper {
    /// Starts a server of its own.
    ///
    /// # Panics
    /// When Java or a jar is missing, or the server does not come up.
    pub fn start() -> Self {
        ZooKeeper::with(Settings::default())
    }

    /// Starts a server with further settings.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn with(settings: Settings) -> Self {
        ZooKeeper::prepared(settings, |_| {})
    }

    /// Starts a server in a folder that `prepare` has put things in.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn prepared(settings: Settings, prepare: impl Fn(&Path)) -> Self {
        let mut said = String::new();
        // Somebody else may take the port between the look and the start.
        for _ in 0..5 {
            let folder = folder("zookeeper");
            prepare(&folder);
            let mut server = ZooKeeper::launch(folder, free_port(), None, settings.clone());
            if server.comes_up() {
                return server;
            }
            said = server.log();
        }
        panic!("zookeeper does not start: {said}");
    }

    /// Starts a server that speaks TLS on its [`secure_port`](Self::secure_port).
    /// With `ask_client`, only to those who show a certificate it knows: its own.
    pub fn tls(ask_client: bool) -> Self {
        let netty = "org.apache.zookeeper.server.NettyServerCnxnFactory";
        let mut settings = Settings::default()
            .line("secureClientPort={port}")
            .line("secureClientPortAddress=127.0.0.1")
            .line(format!("serverCnxnFactory={netty}"))
            .line("ssl.keyStore.location={folder}/both.pem")
            .line("ssl.keyStore.type=PEM")
            .line("ssl.trustStore.location={folder}/cert.pem")
            .line("ssl.trustStore.type=PEM")
            .line(format!("ssl.clientAuth={}", if ask_client { "need" } else { "none" }));
        settings.jars.extend(java::NETTY);
        ZooKeeper::prepared(settings, |folder| {
            certificate(folder);
            let read = |name| fs::read_to_string(folder.join(name)).expect("a PEM file");
            let both = read("key.pem") + &read("cert.pem");
            fs::write(folder.join("both.pem"), both).expect("a key store");
        })
    }

    /// Starts a server that lets nobody in without the login `keeper`,
    /// `se/cret` by SASL (DIGEST-MD5).
    pub fn sasl() -> Self {
        let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
        let settings = Settings::default()
            .line(format!("authProvider.sasl={provider}"))
            .line("enforce.auth.enabled=true")
            .line("enforce.auth.schemes=sasl")
            .property("java.security.auth.login.config={folder}/jaas.conf");
        ZooKeeper::prepared(settings, |folder| {
            let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
            let users = format!("Server {{ {module} required user_keeper=\"se/cret\"; }};\n");
            fs::write(folder.join("jaas.conf"), users).expect("a file for the users");
        })
    }

    /// Starts the program; whether it comes up is another question.
    /// A member of an ensemble has a number.
    pub(super) fn launch(
        folder: PathBuf,
        port: u16,
        number: Option<usize>,
        mut settings: Settings,
    ) -> Self {
        let data = folder.join("data");
        fs::create_dir_all(&data).expect("a folder for the data");
        if let Some(number) = number {
            fs::write(data.join("myid"), number.to_string()).expect("a file with its number");
        }
        for text in settings.lines.iter_mut().chain(&mut settings.properties) {
            *text = text.replace("{folder}", &folder.display().to_string());
            *text = text.replace("{port}", &free_port().to_string());
        }
        let lines = [
            format!("tickTime={}", TICK.as_millis()),
            format!("dataDir={}", data.display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "minSessionTimeout=400".to_owned(),
            "maxSessionTimeout=60000".to_owned(),
            "maxClientCnxns=0".to_owned(),
        ];
        let lines = [&lines[..], &settings.lines[..]].concat().join("\n");
        fs::write(folder.join("zoo.cfg"), lines).expect("a configuration file");
        ZooKeeper { child: run(&folder, &settings), folder, port, settings }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for clients that speak TLS, if it has one.
    pub fn secure_port(&self) -> Option<u16> {
        let lines = self.settings.lines.iter();
        lines.into_iter().find_map(|line| line.strip_prefix("secureClientPort=")?.parse().ok())
    }

    /// Its URL, with the session that tests use.
    pub fn url(&self) -> String {
        url(&[self.port], USUAL)
    }

    /// Its folder: `data` below it, and `cert.pem` where it speaks TLS.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Asks it one of its four-letter words; nothing, if it does not answer.
    pub fn word(&self, word: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let limit = Duration::from_secs(2);
            let address = SocketAddr::from(([127, 0, 0, 1], self.port));
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(word.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().unwrap_or_default()
    }

    /// One of the numbers that `mntr` tells.
    ///
    /// # Panics
    /// When the server does not answer, or not with that.
    pub fn measure(&self, name: &str) -> u64 {
        let answer = self.word("mntr");
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let value = value.and_then(|value| value.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name} is not in {answer:?}")) as u64
    }

    /// What it is: `standalone`, `leader`, `follower`, `read-only`; nothing
    /// while it serves nobody.
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr");
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// The sessions of the clients connected to it, such as `0x1000a2b`.
    pub fn sessions(&self) -> Vec<String> {
        let answer = self.word("cons");
        let session = |line: &str| Some(line.split_once("sid=")?.1.split(',').next()?.to_owned());
        answer.lines().filter_map(session).collect()
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Starts it again in the same place, and waits until it serves.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..20 {
            self.child = run(&self.folder, &self.settings);
            if self.comes_up() {
                return;
            }
            self.kill();
        }
        panic!("zookeeper does not start again: {}", self.log());
    }

    /// Stops it where it stands.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Waits until it serves; false if it ended or another has its port.
    pub(super) fn comes_up(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(40) {
            if self.mode().is_some() {
                let ours = self.folder.join("data").display().to_string();
                return self.word("conf").contains(&ours);
            }
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: kill has no memory to corrupt; the id is that of our own
        // child, which is not reaped before it is replaced or dropped.
        unsafe { libc::kill(id, signal) };
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What follows the members in the URLs of tests: a session that ends soon,
/// and the tick that the servers really have.
pub const USUAL: &str = "/?session=2s&tick=200ms";

/// The URL of the servers at these ports; `rest` follows them.
pub fn url(ports: &[u16], rest: &str) -> String {
    let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("zookeeper://{}{rest}", places.join(","))
}

fn run(folder: &Path, settings: &Settings) -> Child {
    let jars = [java::SERVER, &settings.jars].concat();
    let log = fs::File::options().create(true).append(true).open(folder.join("log"));
    let log = log.expect("a log file");
    let mut command = java::machine();
    command
        // A crash of the program loses nothing that it has written, and no
        // test cuts the power.
        .arg("-Dzookeeper.forceSync=no")
        .arg("-Dzookeeper.preAllocSize=1024")
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        .arg("-Dznode.container.checkIntervalMs=1000")
        .args(settings.properties.iter().map(|property| format!("-D{property}")))
        .args(["-cp", &java::class_path(&jars)])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(folder.join("zoo.cfg"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log);
    java::spawn(command)
}
