//! Tokens checked by the database that holds the data.

use crate::error::{Error, ErrorKind, Result, invalid};
use crate::token::Token;

/// A table whose rows remember the highest token that wrote to them.
///
/// Only a token that is checked *where the data is* protects it from a writer
/// that was replaced and does not know it yet. Give the table a column for the
/// token (`fence bigint NOT NULL DEFAULT 0`), and let every transaction that
/// writes under a lock begin with [`admit_postgres`](Self::admit_postgres) or
/// [`admit_mysql`](Self::admit_mysql): it locks the row until the transaction
/// ends, refuses the token if a higher one was here, and notes it otherwise.
/// Whatever the transaction writes then is fenced as a whole.
///
/// By hand, in a single statement, it is
///
/// ```sql
/// UPDATE orders SET status = ?, fence = ? WHERE id = ? AND fence <= ?
/// ```
///
/// which has written if it found a row. (MySQL and MariaDB count rows that
/// were *changed*: writing the same values again under the same token counts
/// none, unless the connection was made with `CLIENT_FOUND_ROWS`.)
///
/// # Examples
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn pay(keeper: lockkeeper::Keeper, client: &mut tokio_postgres::Client)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::FencedTable;
///
/// let orders = FencedTable::new("orders", "id", "fence")?;
/// let guard = keeper.mutex("orders/42").lock().await?;
///
/// let transaction = client.transaction().await?;
/// orders.admit_postgres(&transaction, &42_i64, guard.token()).await?;
/// transaction.execute("UPDATE orders SET status = 'paid' WHERE id = 42", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Names of tables and columns are part of the statement, so they are plain:
/// ```
/// use lockkeeper::FencedTable;
///
/// assert!(FencedTable::new("shop.orders", "id", "fence").is_ok());
/// assert!(FencedTable::new("orders; DROP TABLE orders", "id", "fence").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct FencedTable {
    table: String,
    key: String,
    fence: String,
}

impl FencedTable {
    /// Names the table, the column that tells its rows apart, and the column
    /// that keeps the highest token.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name with anything but ASCII letters,
    /// digits and underscores; a table may have a schema before a point.
    pub fn new(
        table: impl Into<String>,
        key: impl Into<String>,
        fence: impl Into<String>,
    ) -> Result<Self> {
        let (table, key, fence) = (table.into(), key.into(), fence.into());
        for part in table.split('.').chain([&*key, &*fence]) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if part.is_empty() || !part.bytes().all(plain) || table.split('.').count() > 2 {
                return Err(invalid(format!(
                    "{part:?} cannot be the name of a table or column here: ASCII letters, \
                     digits and underscores"
                )));
            }
        }
        Ok(FencedTable { table, key, fence })
    }

    /// Lets `token` write to the row with this key, within `transaction`.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] if a higher token was here: roll back, the lock is
    /// somebody else's. [`ErrorKind::Invalid`] if there is no such row, or the
    /// table is not as described.
    ///
    /// # Cancel safety
    /// May have taken effect; what becomes of it is the transaction's affair.
    #[cfg(feature = "postgres")]
    pub async fn admit_postgres(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        key: &(dyn tokio_postgres::types::ToSql + Sync),
        token: Token,
    ) -> Result<()> {
        let FencedTable { table, key: column, fence } = self;
        let number = stored(token)?;
        let look = format!("SELECT {fence} FROM {table} WHERE {column} = $1 FOR UPDATE");
        let row = transaction.query_opt(&look, &[key]).await.map_err(failed)?;
        let row = row.ok_or_else(|| self.no_row())?;
        self.compare(row.try_get::<_, Option<i64>>(0).map_err(failed)?, token)?;
        let note = format!("UPDATE {table} SET {fence} = $2 WHERE {column} = $1");
        transaction.execute(&note, &[key, &number]).await.map_err(failed)?;
        Ok(())
    }

    /// Lets `token` write to the row with this key, within `transaction`.
    ///
    /// # Errors
    /// As [`admit_postgres`](Self::admit_postgres).
    ///
    /// # Cancel safety
    /// May have taken effect; what becomes of it is the transaction's affair.
    #[cfg(feature = "mysql")]
    pub async fn admit_mysql(
        &self,
        transaction: &mut mysql_async::Transaction<'_>,
        key: impl Into<mysql_async::Value>,
        token: Token,
    ) -> Result<()> {
        use mysql_async::prelude::Queryable;
        let FencedTable { table, key: column, fence } = self;
        let (key, number) = (key.into(), stored(token)?);
        // A locking read sees the latest, whatever the transaction has read before.
        let look = format!("SELECT {fence} FROM {table} WHERE {column} = ? FOR UPDATE");
        let row: Option<Option<i64>> =
            transaction.exec_first(look, (key.clone(),)).await.map_err(failed)?;
        self.compare(row.ok_or_else(|| self.no_row())?, token)?;
        let note = format!("UPDATE {table} SET {fence} = ? WHERE {column} = ?");
        transaction.exec_drop(note, (number, key)).await.map_err(failed)
    }

    fn compare(&self, seen: Option<i64>, token: Token) -> Result<()> {
        let seen = Token::new(u64::try_from(seen.unwrap_or(0)).unwrap_or(0));
        if seen <= token {
            return Ok(());
        }
        let text = format!("token {token} is stale: {} has seen {seen}", self.table);
        Err(Error::new(ErrorKind::Stale, text).during("fence"))
    }

    fn no_row(&self) -> Error {
        invalid(format!("{} has no row of this {}", self.table, self.key)).during("fence")
    }
}

/// Databases have signed numbers.
fn stored(token: Token) -> Result<i64> {
    i64::try_from(token.get())
        .map_err(|_| invalid(format!("token {token} does not fit a bigint")).during("fence"))
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let text = format!("the transaction failed: {error}");
    Error::new(ErrorKind::Invalid, text).because(error).during("fence")
}
