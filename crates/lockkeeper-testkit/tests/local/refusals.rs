//! What the engine will not lock in, and says why.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use lockkeeper::{Error, ErrorKind, Keeper, Local};

use crate::kit::keeper;

async fn refused(dir: &Path) -> Error {
    Keeper::new(Local::at(dir)).await.expect_err("it is refused")
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    keeper(temp.path()).await.close().await.unwrap();
    let db = rusqlite::Connection::open(temp.path().join("lk.db")).unwrap();
    db.execute_batch("PRAGMA user_version = 9").unwrap();
    drop(db);
    let error = refused(temp.path()).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("newer version"), "{error}");
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("lk.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)").unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let error = refused(temp.path()).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn no_database_at_all_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(
        temp.path().join("lk.db"),
        "not a database, but long enough to be one".repeat(50),
    )
    .unwrap();
    assert_eq!(refused(temp.path()).await.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_directory_used_for_something_else_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("thesis.tex"), "x").unwrap();
    let error = refused(temp.path()).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    let error = refused(&temp.path().join("thesis.tex/locks")).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1, "left something");
}

#[tokio::test]
async fn a_pseudo_file_system_is_refused() {
    for dir in ["/proc/lockkeeper", "/sys/lockkeeper"] {
        let error = refused(Path::new(dir)).await;
        assert!([ErrorKind::Invalid, ErrorKind::Unreachable].contains(&error.kind()), "{error}");
    }
}

#[tokio::test]
async fn files_are_private_or_follow_a_shared_directory() {
    for (dir, file) in [(0o700, 0o600), (0o770, 0o660), (0o1777, 0o666)] {
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(dir)).unwrap();
        let keeper = keeper(temp.path()).await;
        let _guard = keeper.mutex("m").lock().await.unwrap();
        for entry in std::fs::read_dir(temp.path()).unwrap().flatten() {
            let mode = entry.metadata().unwrap().mode() & 0o777;
            assert_eq!(mode, file, "{:?} in a directory of {dir:o}", entry.file_name());
        }
    }
}

#[tokio::test]
async fn the_same_directory_has_the_same_label_by_any_path() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("locks");
    let one = keeper(&dir).await;
    let link = temp.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let two = keeper(&link).await;
    assert_eq!(one.info().label, two.info().label);
    assert_eq!(&*one.info().label, format!("local:{}", dir.canonicalize().unwrap().display()));
    let three = Keeper::connect(dir.to_str().unwrap()).await.unwrap();
    assert_eq!(one.info().label, three.info().label);
}
