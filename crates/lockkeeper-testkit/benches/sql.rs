//! Leases in rows beside bare transactions through the same drivers, and what
//! waiting costs the server.
//!
//! `cargo bench -p lockkeeper-testkit --bench sql` starts both servers itself.
//! A lock and its release are two transactions of two round trips each; so is
//! the floor: lock a row, read the clock, then write it and commit. The two
//! take turns, so that a busy machine slows both alike.

use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use lockkeeper_testkit::sql::{Flavour, PASSWORD, SqlServer};
use mysql_async::prelude::Queryable;

const ROUNDS: usize = 20;
const CYCLES: usize = 50;
const LOOK: Duration = Duration::from_secs(4);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        for flavour in Flavour::ALL {
            solo(flavour).await;
        }
        for flavour in Flavour::ALL {
            waiters(flavour).await;
        }
    });
}

/// A bare connection of either driver.
enum Bare {
    Mysql(mysql_async::Conn),
    Postgres(tokio_postgres::Client),
}

impl Bare {
    async fn open(server: &SqlServer, database: &str) -> Bare {
        match server.flavour() {
            Flavour::MariaDb => {
                let options = mysql_async::OptsBuilder::default()
                    .ip_or_hostname("127.0.0.1")
                    .tcp_port(server.port())
                    .prefer_socket(false)
                    .user(Some("keeper"))
                    .pass(Some(PASSWORD))
                    .db_name(Some(database));
                Bare::Mysql(mysql_async::Conn::new(options).await.expect("a connection"))
            }
            Flavour::Postgres => {
                let mut config = tokio_postgres::Config::new();
                config.host("127.0.0.1").port(server.port()).dbname(database);
                config.user("keeper").password(PASSWORD);
                let (client, connection) =
                    config.connect(tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                Bare::Postgres(client)
            }
        }
    }

    async fn batch(&mut self, statements: &str) {
        match self {
            Bare::Mysql(conn) => conn.query_drop(statements).await.expect("an answer"),
            Bare::Postgres(client) => {
                client.simple_query(statements).await.expect("an answer");
            }
        }
    }

    /// One row locked, read, written and committed.
    async fn transaction(&mut self) {
        let clock = match self {
            Bare::Mysql(_) => "SELECT SYSDATE(6)",
            Bare::Postgres(_) => "SELECT clock_timestamp()",
        };
        self.batch(&format!("BEGIN; SELECT n FROM floor WHERE id = 1 FOR UPDATE; {clock}")).await;
        self.batch("UPDATE floor SET n = n + 1 WHERE id = 1; COMMIT").await;
    }
}

async fn solo(flavour: Flavour) {
    let server = SqlServer::durable(flavour);
    let database = server.database();
    let mut bare = Bare::open(&server, &database).await;
    bare.batch("CREATE TABLE floor (id int PRIMARY KEY, n bigint)").await;
    bare.batch("INSERT INTO floor VALUES (1, 0)").await;
    let keeper = Keeper::connect(&server.url(&database)).await.expect("a keeper");
    let mutex = keeper.mutex("solo");
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..CYCLES {
            let start = Instant::now();
            bare.transaction().await;
            bare.transaction().await;
            floor.push(start.elapsed());
        }
        for _ in 0..CYCLES {
            let start = Instant::now();
            let _ = mutex.lock().await.expect("a lock").release().await.expect("a release");
            ours.push(start.elapsed());
        }
    }
    floor.sort_unstable();
    ours.sort_unstable();
    for part in [0.5, 0.99] {
        let at = |spans: &[Duration]| spans[((spans.len() - 1) as f64 * part) as usize];
        let (floor, ours) = (at(&floor), at(&ours));
        let ratio = ours.as_secs_f64() / floor.as_secs_f64();
        println!(
            "{flavour:?} solo p{:.0}: lock and release {ours:?}, two bare transactions {floor:?}, \
             {ratio:.2} times",
            part * 100.0
        );
    }
    keeper.close().await.expect("a good-bye");
}

/// What idle waiters of one process cost the server.
async fn waiters(flavour: Flavour) {
    let server = SqlServer::start(flavour);
    for (count, names) in [(1, 1), (10, 1), (100, 1), (10, 10), (100, 100)] {
        let database = server.database();
        let url = server.url(&database);
        let holder = Keeper::connect(&url).await.expect("a keeper");
        let waiter = Keeper::connect(&url).await.expect("a keeper");
        let mut guards = Vec::new();
        for name in 0..names {
            guards.push(holder.mutex(format!("{name}")).lock().await.expect("a lock"));
        }
        let tasks: Vec<_> = (0..count)
            .map(|number| {
                let mutex = waiter.mutex(format!("{}", number % names));
                tokio::spawn(async move { mutex.lock().await.map(drop) })
            })
            .collect();
        // Until the polling has slowed down.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = questions(&server, &database);
        tokio::time::sleep(LOOK).await;
        let after = questions(&server, &database);
        let rate = (after - before) as f64 / LOOK.as_secs_f64();
        let what = match flavour {
            Flavour::MariaDb => "statements",
            Flavour::Postgres => "transactions",
        };
        println!("{flavour:?}: {count} waiters for {names} names: {rate:.1} {what} a second");
        tasks.iter().for_each(|task| task.abort());
        drop(guards);
    }
}

fn questions(server: &SqlServer, database: &str) -> i64 {
    let rows = match server.flavour() {
        Flavour::MariaDb => server.sql("", "SHOW GLOBAL STATUS LIKE 'Questions'"),
        Flavour::Postgres => server.sql(
            "",
            &format!(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = \
                 '{database}'"
            ),
        ),
    };
    rows.split_whitespace().last().and_then(|number| number.parse().ok()).expect("a number")
}
