//! One connection, and the task that owns it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use super::config::Sql;
use super::fault::{Class, Fault};
use super::phrase::{self, Phrase};

/// A connection of either driver. Statements go out as text, several at once
/// in one batch: one round trip, and nothing to prepare.
#[async_trait]
pub(super) trait Connection: Send {
    /// Runs statements in order, up to the first error, and gives what each
    /// of them answered.
    ///
    /// Whoever drops this future, or gets [`Class::Lost`], drops the connection.
    async fn batch(&mut self, statements: &str) -> Result<Vec<Table>, Fault>;

    /// Begins a transaction that sees what others have committed by the time
    /// of each statement.
    fn begin(&self) -> &'static str;

    /// Begins a transaction that reads one state of the database.
    fn snapshot(&self) -> &'static str;

    /// Commits.
    fn commit(&self) -> &'static str;

    /// Undoes.
    fn rollback(&self) -> &'static str;

    /// What is worth being prepared once per connection.
    fn prepares(&self) -> &'static [Phrase];

    /// Whether a statement has one time, that of its start: then the clock is
    /// to be read by another one, after the rows are locked.
    fn clock_apart(&self) -> bool;

    /// The server's number for the session, to end it from another one.
    fn session(&self) -> u64;

    /// Becomes true when the server has ended the connection, where the
    /// driver notices that by itself.
    fn ended(&self) -> Option<watch::Receiver<bool>>;

    /// Says good-bye.
    async fn close(self: Box<Self>);
}

/// What one statement answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// The rows, if it was a question.
    pub(super) rows: Vec<Row>,
    /// How many rows it changed, if it was none.
    pub(super) changed: u64,
}

/// The values of a row, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row(pub(super) Vec<Option<Vec<u8>>>);

impl Row {
    /// A text; empty if there is none.
    pub(super) fn text(&self, column: usize) -> Result<&str, Fault> {
        self.maybe_text(column).map(Option::unwrap_or_default)
    }

    /// A text, or nothing.
    pub(super) fn maybe_text(&self, column: usize) -> Result<Option<&str>, Fault> {
        let value = self.0.get(column).ok_or_else(|| damaged(column))?;
        let text = value.as_deref().map(std::str::from_utf8).transpose();
        text.map_err(|_| damaged(column))
    }

    /// A number.
    pub(super) fn number(&self, column: usize) -> Result<i64, Fault> {
        self.maybe_number(column)?.ok_or_else(|| damaged(column))
    }

    /// A number, or nothing.
    pub(super) fn maybe_number(&self, column: usize) -> Result<Option<i64>, Fault> {
        let text = self.maybe_text(column)?;
        text.map(|text| text.parse().map_err(|_| damaged(column))).transpose()
    }
}

fn damaged(column: usize) -> Fault {
    let text = format!("column {} of an answer is not what it should be", column + 1);
    Fault::new(Class::Refused(crate::ErrorKind::Unexpected), text)
}

/// Connects in time.
pub(super) async fn connect(
    sql: &Sql,
    pushes: Option<mpsc::UnboundedSender<String>>,
) -> Result<Box<dyn Connection>, Fault> {
    match tokio::time::timeout(sql.connect, sql.dialect.connect(sql, pushes)).await {
        Ok(connected) => connected,
        Err(_) => Err(Fault::new(Class::NotNow, format!("no connection within {:?}", sql.connect))),
    }
}

/// Connects, and prepares the connection for operations on tables that are there.
pub(super) async fn connect_prepared(sql: &Sql) -> Result<Box<dyn Connection>, Fault> {
    let mut connection = connect(sql, None).await?;
    prepare(sql, &mut *connection).await?;
    Ok(connection)
}

/// Prepares a connection for operations.
pub(super) async fn prepare(sql: &Sql, connection: &mut dyn Connection) -> Result<(), Fault> {
    match connection.prepares() {
        [] => Ok(()),
        phrases => {
            let statements = phrase::prepare(sql, phrases);
            ask(connection, &statements, sql.command).await.map(drop)
        }
    }
}

/// Runs a batch with a limit. After [`Class::Lost`] the connection is of no use.
pub(super) async fn ask(
    connection: &mut dyn Connection,
    statements: &str,
    limit: Duration,
) -> Result<Vec<Table>, Fault> {
    match tokio::time::timeout(limit, connection.batch(statements)).await {
        Ok(answer) => answer,
        Err(_) => Err(Fault::silent(limit)),
    }
}

/// A connection in the hands of a task of its own.
///
/// Whoever drops the future of a question drops the answer, never the
/// question: it is asked to its end, and the next one waits for it. Dropping
/// the wire closes the connection after the question in hand.
pub(super) struct Wire {
    questions: mpsc::UnboundedSender<Question>,
    session: u64,
    ended: watch::Receiver<bool>,
}

struct Question {
    statements: String,
    limit: Duration,
    reply: oneshot::Sender<Result<Vec<Table>, Fault>>,
}

impl Wire {
    /// Makes a connection and the task that owns it.
    pub(super) async fn open(sql: &Sql) -> Result<Wire, Fault> {
        let connection = connect(sql, None).await?;
        let (questions, inbox) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let session = connection.session();
        tokio::spawn(serve(connection, inbox, end));
        Ok(Wire { questions, session, ended })
    }

    /// Asks, and waits for the answer. A question that takes longer than
    /// `limit` ends the connection.
    pub(super) async fn ask(
        &self,
        statements: impl Into<String>,
        limit: Duration,
    ) -> Result<Vec<Table>, Fault> {
        let (reply, answer) = oneshot::channel();
        let gone = || Fault::new(Class::Lost, "the connection is closed");
        let question = Question { statements: statements.into(), limit, reply };
        self.questions.send(question).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// The server's number for the session.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Whether the connection has ended, as far as that has been noticed.
    pub(super) fn is_over(&self) -> bool {
        *self.ended.borrow() || self.questions.is_closed()
    }

    /// Waits until the connection has ended, as far as that is noticed
    /// without asking.
    pub(super) async fn ended(&self) {
        // An error means that the task is gone, and its connection with it.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("session", &self.session).finish()
    }
}

async fn serve(
    mut connection: Box<dyn Connection>,
    mut inbox: mpsc::UnboundedReceiver<Question>,
    end: watch::Sender<bool>,
) {
    let mut noticed = connection.ended();
    loop {
        let question = tokio::select! {
            question = inbox.recv() => question,
            _ = noticed_end(&mut noticed) => {
                end.send_replace(true);
                return;
            }
        };
        let Some(Question { statements, limit, reply }) = question else { break };
        let answer = ask(&mut *connection, &statements, limit).await;
        let lost = answer.as_ref().is_err_and(|fault| !fault.leaves_connection());
        // Nobody left to tell; the connection is still good.
        let _ = reply.send(answer);
        if lost {
            end.send_replace(true);
            return;
        }
    }
    connection.close().await;
}

async fn noticed_end(noticed: &mut Option<watch::Receiver<bool>>) {
    match noticed {
        Some(ended) => {
            let _ = ended.wait_for(|ended| *ended).await;
        }
        None => std::future::pending().await,
    }
}
