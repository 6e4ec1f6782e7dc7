//! Tokens checked inside the transactions of a program of its own.

use lockkeeper::{ErrorKind, FencedTable, Token};
use lockkeeper_testkit::sql::{Flavour, PASSWORD};
use mysql_async::prelude::Queryable;

use crate::kit::{Place, Strategy, lease, locked};

const TABLE: &str = "CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20) NOT NULL, \
                     fence bigint NOT NULL DEFAULT 0)";

async fn postgres(place: &Place) -> tokio_postgres::Client {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(place.server.port()).dbname(&place.database);
    config.user("keeper").password(PASSWORD);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn mysql(place: &Place) -> mysql_async::Conn {
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(place.server.port())
        .prefer_socket(false)
        .user(Some("keeper"))
        .pass(Some(PASSWORD))
        .db_name(Some(place.database.clone()));
    mysql_async::Conn::new(options).await.unwrap()
}

/// Whoever was replaced is refused, also when its transaction read before the
/// newer one wrote; the same token may write again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_refuses_a_stale_token() {
    let place = Place::new(Flavour::Postgres, Strategy::Session);
    let keeper = place.keeper().await;
    let orders = FencedTable::new("public.orders", "id", "fence").unwrap();
    let (mut one, mut two) = (postgres(&place).await, postgres(&place).await);
    one.batch_execute(&format!("{TABLE}; INSERT INTO orders VALUES (1, 'new')")).await.unwrap();
    let old = locked(&keeper, "orders/1", lease(5000)).await.token();
    let new = locked(&keeper, "orders/1", lease(5000)).await.token();

    for status in ["paid", "paid", "sent"] {
        let transaction = one.transaction().await.unwrap();
        orders.admit_postgres(&transaction, &1_i64, old).await.unwrap();
        transaction.execute("UPDATE orders SET status = $1", &[&status]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let slow = one.transaction().await.unwrap();
    slow.query_one("SELECT fence FROM orders WHERE id = 1", &[]).await.unwrap();
    let transaction = two.transaction().await.unwrap();
    orders.admit_postgres(&transaction, &1_i64, new).await.unwrap();
    transaction.commit().await.unwrap();
    let error = orders.admit_postgres(&slow, &1_i64, old).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    slow.rollback().await.unwrap();

    let transaction = two.transaction().await.unwrap();
    let error = orders.admit_postgres(&transaction, &2_i64, new).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let huge = Token::new(u64::MAX);
    let error = orders.admit_postgres(&transaction, &1_i64, huge).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    drop(transaction);
    assert_eq!(place.sql("SELECT status, fence FROM orders"), format!("sent\t{new}"));
}

/// The same, where a transaction sees an old state of the rows it only reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_refuses_a_stale_token() {
    let place = Place::new(Flavour::MariaDb, Strategy::Session);
    let keeper = place.keeper().await;
    let orders = FencedTable::new("orders", "id", "fence").unwrap();
    let (mut one, mut two) = (mysql(&place).await, mysql(&place).await);
    one.query_drop(TABLE).await.unwrap();
    one.query_drop("INSERT INTO orders VALUES (1, 'new', 0)").await.unwrap();
    let old = locked(&keeper, "orders/1", lease(5000)).await.token();
    let new = locked(&keeper, "orders/1", lease(5000)).await.token();

    for status in ["paid", "paid", "sent"] {
        let mut transaction = one.start_transaction(Default::default()).await.unwrap();
        orders.admit_mysql(&mut transaction, 1, old).await.unwrap();
        transaction.exec_drop("UPDATE orders SET status = ?", (status,)).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let mut slow = one.start_transaction(Default::default()).await.unwrap();
    let seen: Option<u64> = slow.query_first("SELECT fence FROM orders").await.unwrap();
    assert_eq!(seen, Some(old.get()));
    let mut transaction = two.start_transaction(Default::default()).await.unwrap();
    orders.admit_mysql(&mut transaction, 1, new).await.unwrap();
    transaction.commit().await.unwrap();
    let error = orders.admit_mysql(&mut slow, 1, old).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    slow.rollback().await.unwrap();

    let mut transaction = two.start_transaction(Default::default()).await.unwrap();
    let error = orders.admit_mysql(&mut transaction, 2, new).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    transaction.rollback().await.unwrap();
    assert_eq!(place.sql("SELECT status, fence FROM orders"), format!("sent\t{new}"));
}

/// Many writers, each with a lock of its own that it may lose: what the rows
/// accept rises, whatever the writers believe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_by_hand_does_the_same() {
    for flavour in Flavour::ALL {
        let place = Place::new(flavour, Strategy::Lease);
        place.sql(TABLE);
        place.sql("INSERT INTO orders VALUES (1, 'new', 20)");
        let update = |status: &str, token: u64| {
            place.sql(&format!(
                "UPDATE orders SET status = '{status}', fence = {token} \
                 WHERE id = 1 AND fence <= {token}"
            ));
            place.sql("SELECT status FROM orders")
        };
        assert_eq!(update("stale", 19), "new");
        assert_eq!(update("same", 20), "same");
        assert_eq!(update("newer", 21), "newer");
        assert_eq!(update("stale", 20), "newer");
    }
}
