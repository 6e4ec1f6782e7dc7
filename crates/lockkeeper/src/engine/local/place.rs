//! Which directory, and whether it may be trusted with locks.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, statfs};
use rustix::process::geteuid;

use crate::error::{Error, ErrorKind, Result, invalid};

pub(super) const DATABASE: &str = "lk.db";
pub(super) const GUARD: &str = "guard";
pub(super) const SESSION: &str = "s-";

/// A directory that has passed every check.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its canonical path.
    pub(super) dir: PathBuf,
    /// The mode of the files in it.
    pub(super) mode: u32,
}

impl Place {
    /// Makes the directory if it is missing, and checks it.
    pub(super) fn prepare(dir: &Path) -> Result<Place> {
        if let Some(above) = dir.ancestors().find(|above| above.exists()) {
            // Before anything is made there.
            refuse_network(magic(above)?, above)?;
        }
        create(dir)?;
        let shown = dir.display();
        let dir = dir.canonicalize().map_err(|error| failed("find", dir, error))?;
        let meta = fs::metadata(&dir).map_err(|error| failed("look at", &dir, error))?;
        if !meta.is_dir() {
            return Err(invalid(format!("{shown} is not a directory")));
        }
        refuse_network(magic(&dir)?, &dir)?;
        check_owner(&dir, &meta)?;
        let rights = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        accessat(CWD, &dir, rights, AtFlags::EACCESS)
            .map_err(|error| failed("write to", &dir, error.into()))?;
        check_content(&dir, &meta)?;
        Ok(Place { mode: file_mode(meta.mode()), dir })
    }

    /// The directory of the current user: the same one from a shell, from
    /// cron and from a service, or they would not exclude each other.
    ///
    /// That rules out `$XDG_RUNTIME_DIR`, which cron jobs do not have and
    /// which is deleted, with its tokens, at the last logout.
    pub(super) fn of_user() -> Result<Place> {
        let home = std::env::home_dir().filter(|home| home.is_absolute() && is_ours(home));
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let state = state
            .filter(|state| state.is_absolute())
            .or_else(|| home.map(|home| home.join(".local/state")));
        if let Some(state) = state {
            return Place::prepare(&state.join("lockkeeper"));
        }
        let dir = std::env::temp_dir().join(format!("lockkeeper-{}", geteuid().as_raw()));
        // Anybody may make anything in there, so a link is not followed.
        match fs::symlink_metadata(&dir) {
            Ok(meta) if meta.is_symlink() => {
                Err(invalid(format!("{} is a symbolic link; remove it", dir.display())))
            }
            _ => Place::prepare(&dir),
        }
    }

    pub(super) fn database(&self) -> PathBuf {
        self.dir.join(DATABASE)
    }

    pub(super) fn guard(&self) -> PathBuf {
        self.dir.join(GUARD)
    }
}

/// Whether a home directory can hold our state.
fn is_ours(home: &Path) -> bool {
    fs::metadata(home).is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw())
        && magic(home).is_ok_and(|magic| network(magic).is_none())
}

/// The number that tells the kind of a file system.
fn magic(dir: &Path) -> Result<u64> {
    let found = statfs(dir).map_err(|error| failed("look at", dir, error.into()))?;
    // The type differs between platforms; magic numbers have 32 bits.
    Ok(found.f_type as u64 & 0xffff_ffff)
}

fn create(dir: &Path) -> Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(invalid(format!("{} is not a directory", dir.display())))
        }
        made => made.map_err(|error| failed("make", dir, error)),
    }
}

fn check_owner(dir: &Path, meta: &Metadata) -> Result<()> {
    let shared = meta.mode() & 0o022 != 0;
    if meta.uid() != geteuid().as_raw() && !shared {
        return Err(invalid(format!(
            "{} belongs to user {}, who does not share it; use a directory of your own, \
             or let its owner make it writable for a group",
            dir.display(),
            meta.uid()
        )));
    }
    Ok(())
}

/// Refuses directories that somebody uses for something else, and databases
/// that somebody else put into ours.
fn check_content(dir: &Path, meta: &Metadata) -> Result<()> {
    match fs::symlink_metadata(dir.join(DATABASE)) {
        Ok(file) => {
            let trusted = [geteuid().as_raw(), meta.uid()].contains(&file.uid());
            let shared = meta.mode() & 0o022 != 0;
            if !file.is_file() || !(trusted || shared) {
                return Err(invalid(format!(
                    "{}/{DATABASE} is not a file of yours or of the directory's owner",
                    dir.display()
                )));
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let entries = fs::read_dir(dir).map_err(|error| failed("read", dir, error))?;
            let foreign = |name: &OsStr| {
                let name = name.to_string_lossy();
                name != GUARD && !name.starts_with(DATABASE) && !name.starts_with(SESSION)
            };
            let foreign =
                entries.flatten().map(|entry| entry.file_name()).find(|name| foreign(name));
            foreign.map_or(Ok(()), |name| {
                Err(invalid(format!(
                    "{} is used for something else (it has {name:?}); locks need a directory \
                     of their own",
                    dir.display()
                )))
            })
        }
        Err(error) => Err(failed("look at", dir, error)),
    }
}

/// Files follow their directory: private, or open to those it is open to.
fn file_mode(dir: u32) -> u32 {
    let group = if dir & 0o020 != 0 { 0o060 } else { 0 };
    let others = if dir & 0o002 != 0 { 0o006 } else { 0 };
    0o600 | group | others
}

fn refuse_network(magic: u64, dir: &Path) -> Result<()> {
    network(magic).map_or(Ok(()), |kind| {
        Err(invalid(format!(
            "{} is on {kind}, where file locks and shared memory do not reach every host; \
             use a directory on a local disk",
            dir.display()
        )))
    })
}

/// What kind of file system that others may share this magic number stands for.
fn network(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "a Windows share (SMB)",
        0x6573_5546 => "FUSE (sshfs, GlusterFS, virtiofs, …)",
        0x0102_1997 => "9p",
        0x00c3_6400 => "CephFS",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x0bd0_0bd0 => "Lustre",
        0x564c => "NCP",
        0x4750_4653 => "GPFS",
        0x786f_4256 => "a VirtualBox share",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0x6163_6673 => "ACFS",
        _ => return None,
    })
}

/// Says what could not be done to a file, and whether trying again may help.
pub(super) fn failed(verb: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Unreachable,
    };
    let text = format!("cannot {verb} {}: {}", path.display(), words(&error));
    Error::new(kind, text).because(error)
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "no permission".to_owned(),
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn kind(dir: &Path) -> ErrorKind {
        Place::prepare(dir).unwrap_err().kind()
    }

    #[test]
    fn a_directory_of_our_own_is_made_private() {
        let temp = tempfile::tempdir().unwrap();
        let place = Place::prepare(&temp.path().join("a/b")).unwrap();
        assert_eq!(place.mode, 0o600);
        assert_eq!(fs::metadata(&place.dir).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn files_follow_a_shared_directory() {
        for (dir, file) in [(0o700, 0o600), (0o755, 0o600), (0o770, 0o660), (0o1777, 0o666)] {
            assert_eq!(file_mode(dir), file, "{dir:o}");
        }
    }

    #[test]
    fn a_directory_used_for_something_else_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("report.txt"), "mine").unwrap();
        let error = Place::prepare(temp.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("report.txt"), "{error}");
        assert_eq!(kind(&temp.path().join("report.txt")), ErrorKind::Invalid);
    }

    #[test]
    fn a_link_in_place_of_the_database_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join(DATABASE)).unwrap();
        assert_eq!(kind(temp.path()), ErrorKind::Invalid);
    }

    #[test]
    fn somebody_elses_private_directory_is_refused() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make a directory of somebody else's");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(temp.path(), Some(12345), None).unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let error = Place::prepare(temp.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("12345"), "{error}");
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(Place::prepare(temp.path()).unwrap().mode, 0o666);
    }

    #[test]
    fn network_file_systems_are_refused_by_name() {
        let nfs = refuse_network(0x6969, Path::new("/home/me")).unwrap_err();
        assert_eq!(nfs.kind(), ErrorKind::Invalid);
        assert!(nfs.to_string().contains("/home/me is on NFS"), "{nfs}");
        for local in [0xef53, 0x0102_1994, 0x5846_5342, 0x9123_683e, 0x794c_7630] {
            refuse_network(local, Path::new("/")).unwrap();
        }
        for shared in [0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400] {
            refuse_network(shared, Path::new("/")).unwrap_err();
        }
    }
}
