//! Who is alive in a process group, found out without allocating: the
//! guardian is the fork of a program with threads, and may not.

#[cfg(target_os = "linux")]
use std::ffi::CStr;
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;

/// Whether anything of a process group runs. Zombies do not; with a slow init
/// they stay for seconds, and nobody should wait for that.
#[cfg(target_os = "linux")]
pub(crate) fn group_lives(group: i32) -> bool {
    use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", flags, Mode::empty()) else { return true };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(&proc, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if !name.to_bytes()[0].is_ascii_digit() {
            continue;
        }
        let mut text = [0; 512];
        if let Some(stat) = read_stat(&proc, name, &mut text)
            && lives_in(stat, group)
        {
            return true;
        }
    }
    false
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn group_lives(_group: i32) -> bool {
    true
}

#[cfg(target_os = "linux")]
fn read_stat<'a>(
    proc: &impl std::os::fd::AsFd,
    name: &CStr,
    text: &'a mut [u8; 512],
) -> Option<&'a [u8]> {
    use rustix::fs::{Mode, OFlags, openat};

    let (mut path, name) = ([0; 32], name.to_bytes());
    path.get_mut(..name.len())?.copy_from_slice(name);
    path.get_mut(name.len()..name.len() + 5)?.copy_from_slice(b"/stat");
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let stat = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let count = rustix::io::read(&stat, &mut text[..]).ok()?;
    text.get(..count)
}

/// Reads `pid (name) STATE ppid PGRP …`; the name may hold anything.
#[cfg(target_os = "linux")]
fn lives_in(stat: &[u8], group: i32) -> bool {
    let after_name = stat.iter().rposition(|&byte| byte == b')').map_or(stat.len(), |at| at + 1);
    let mut fields =
        stat[after_name..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = fields.next();
    let theirs =
        fields.nth(1).and_then(|field| std::str::from_utf8(field).ok()?.parse::<i32>().ok());
    theirs == Some(group) && !matches!(state, Some(b"Z" | b"X"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_living_and_the_dead_are_told_apart() {
        assert!(lives_in(b"12 (a) b) S 1 12 12 0", 12));
        assert!(!lives_in(b"12 (a) Z 1 12 12 0", 12));
        assert!(!lives_in(b"13 (a) S 1 13 13 0", 12));
        assert!(!lives_in(b"", 12));
        assert!(!group_lives(i32::MAX));
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let group = i32::try_from(child.id()).unwrap();
        assert!(group_lives(group));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!group_lives(group));
    }
}
