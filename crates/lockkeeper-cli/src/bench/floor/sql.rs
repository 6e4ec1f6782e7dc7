//! Beside `mysql:` and `postgres:` stand as many bare transactions through the
//! same client library, and NOTIFY where the database pushes.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use lockkeeper::bench::SqlBare;
use lockkeeper::{LockName, Sql, Strategy};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Counters, Floor, Ring, Side, Words, broken};
use crate::bench::meter::Meter;
use crate::exit::Failure;

/// How many names are forgotten at once.
const AT_ONCE: usize = 500;

pub(super) struct SqlFloor {
    url: String,
    sql: Sql,
    postgres: bool,
    table: String,
    /// For everything but pairs.
    desk: Mutex<SqlBare>,
    /// As many as the engine works with; opened when they are needed.
    lines: Mutex<Vec<std::sync::Arc<Mutex<SqlBare>>>>,
    next: AtomicUsize,
}

impl SqlFloor {
    /// `prepared`: somebody else makes the table.
    pub(super) async fn open(url: &str, prepared: bool) -> Result<Self, Failure> {
        let sql = Sql::parse(url).map_err(Failure::connecting)?;
        let postgres = url.starts_with("postgres");
        let table = sql.bench_table();
        let mut desk = sql.bare(None).await.map_err(Failure::connecting)?;
        if !prepared {
            let make = match postgres {
                true => format!(
                    "CREATE TABLE IF NOT EXISTS {table} (name text PRIMARY KEY, number bigint NOT NULL)"
                ),
                false => format!(
                    "CREATE TABLE IF NOT EXISTS {table} (name varbinary(512) PRIMARY KEY, number bigint NOT NULL) ENGINE = InnoDB"
                ),
            };
            desk.batch(&make).await.map_err(Failure::from)?;
        }
        let (desk, lines) = (Mutex::new(desk), Mutex::default());
        Ok(SqlFloor {
            url: url.to_owned(),
            sql,
            postgres,
            table,
            desk,
            lines,
            next: AtomicUsize::new(0),
        })
    }

    /// A connection; tasks share as many as the engine has.
    async fn line(&self) -> Result<std::sync::Arc<Mutex<SqlBare>>, Failure> {
        let mut lines = self.lines.lock().await;
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.sql.most_connections();
        while lines.len() <= number {
            let line = self.sql.bare(None).await.map_err(Failure::connecting)?;
            lines.push(std::sync::Arc::new(Mutex::new(line)));
        }
        Ok(lines[number].clone())
    }
}

#[async_trait]
impl Floor for SqlFloor {
    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> Words {
        let pair = match self.sql.strategy() {
            Strategy::Lease => "two transactions that lock a row, change it and commit",
            Strategy::Session => "a row locked, another changed meanwhile on a second connection",
        };
        let hand_over = self.postgres.then_some("NOTIFY, received by the next process");
        Words { pair, hand_over }
    }

    async fn server(&self) -> Result<Option<String>, Failure> {
        let rows = self.desk.lock().await.batch("SELECT version()").await.map_err(broken)?;
        let version = rows.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        let version = version.split(" (").next().and_then(|text| text.split(" on ").next());
        Ok(version.map(|version| match self.postgres {
            true => version.to_owned(),
            false => match version.split_once("-MariaDB") {
                Some((version, _)) => format!("MariaDB {version}"),
                None => format!("MySQL {version}"),
            },
        }))
    }

    /// Statements that clients have sent. PostgreSQL counts its own late, so
    /// that nothing can be said in time.
    async fn counters(&self, _side: Side) -> Result<Option<Counters>, Failure> {
        if self.postgres {
            return Ok(None);
        }
        let ask = "SHOW GLOBAL STATUS LIKE 'Questions'";
        let rows = self.desk.lock().await.batch(ask).await.map_err(broken)?;
        let number = rows.first().and_then(|row| row.get(1)?.parse::<u64>().ok());
        // The question is one of them.
        Ok(number.map(|number| Counters { commands: number.saturating_sub(1), cpu: None }))
    }

    async fn pairs(&self, name: &str, meter: &mut Meter) -> Result<(), Failure> {
        let (line, table) = (self.line().await?, &self.table);
        let mut own = line.lock().await;
        let (begin, commit) = (own.begin(), own.commit());
        // One row to lock, one for a token.
        let rows = format!("INTO {table} VALUES ('{name}', 0), ('{name}:token', 0)");
        let rows = match self.postgres {
            true => format!("INSERT {rows} ON CONFLICT DO NOTHING"),
            false => format!("INSERT IGNORE {rows}"),
        };
        own.batch(&rows).await.map_err(broken)?;
        drop(own);
        let take = format!("{begin}; SELECT number FROM {table} WHERE name = '{name}' FOR UPDATE");
        let change =
            format!("UPDATE {table} SET number = number + 1 WHERE name = '{name}'; {commit}");
        let token = format!("UPDATE {table} SET number = number + 1 WHERE name = '{name}:token'");
        while meter.runs() {
            // A transaction keeps its connection until it ends.
            match self.sql.strategy() {
                Strategy::Lease => {
                    for _ in 0..2 {
                        let mut own = line.lock().await;
                        own.batch(&take).await.map_err(broken)?;
                        own.batch(&change).await.map_err(broken)?;
                    }
                }
                Strategy::Session => {
                    let mut own = line.lock().await;
                    own.batch(&take).await.map_err(broken)?;
                    // Tokens go through the one connection beside the locks.
                    self.desk.lock().await.batch(&token).await.map_err(broken)?;
                    own.batch(commit).await.map_err(broken)?;
                }
            }
            meter.tick();
        }
        Ok(())
    }

    async fn sit(&self, ring: &str, seat: usize) -> Result<Option<Box<dyn Ring>>, Failure> {
        if !self.postgres {
            return Ok(None);
        }
        let (pushes, messages) = unbounded_channel();
        let mut heard = self.sql.bare(Some(pushes)).await.map_err(Failure::connecting)?;
        // The longest name of a channel is 63 bytes; the end of a ring's differs.
        let tail: String = ring.chars().filter(char::is_ascii_alphanumeric).collect();
        let channel = format!("bench_{}_", &tail[tail.len().saturating_sub(48)..]);
        heard.batch(&format!("LISTEN \"{channel}{seat}\"")).await.map_err(broken)?;
        let spoken = self.sql.bare(None).await.map_err(Failure::connecting)?;
        Ok(Some(Box::new(Seat { spoken, _heard: heard, channel, messages })))
    }

    async fn clean(&self, names: &[String]) -> Result<(), Failure> {
        let names = names.iter().map(LockName::new).collect::<Result<Vec<_>, _>>()?;
        let mut desk = self.desk.lock().await;
        for some in names.chunks(AT_ONCE) {
            for statement in self.sql.forget_at_once(some) {
                desk.batch(&statement).await.map_err(broken)?;
            }
        }
        desk.batch(&format!("DROP TABLE IF EXISTS {}", self.table)).await.map_err(broken)?;
        Ok(())
    }
}

struct Seat {
    spoken: SqlBare,
    /// Ends with the seat.
    _heard: SqlBare,
    channel: String,
    messages: UnboundedReceiver<String>,
}

#[async_trait]
impl Ring for Seat {
    async fn pass(&mut self, to: usize, what: &str) -> Result<(), Failure> {
        let notify = format!("NOTIFY \"{}{to}\", '{what}'", self.channel);
        self.spoken.batch(&notify).await.map_err(broken)?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<String, Failure> {
        self.messages.recv().await.ok_or_else(|| broken("the connection of a waiter is gone"))
    }
}
