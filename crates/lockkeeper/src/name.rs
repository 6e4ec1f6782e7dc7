//! Lock names: what is allowed, and how engines write them down.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, invalid};

/// A validated name of a lock, semaphore, latch or fence.
///
/// Any UTF-8 text of 1 to 512 bytes is a name; case matters and nothing is
/// normalised, so two names are the same exactly when their bytes are.
///
/// # Examples
/// ```
/// use lockkeeper::LockName;
///
/// let name = LockName::new("orders/42")?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert!(LockName::new("").is_err());
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks `name` and keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is empty or too long.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        match name.len() {
            0 => Err(invalid("a lock name must not be empty")),
            1..=Self::MAX_BYTES => Ok(LockName(name.into())),
            bytes => Err(invalid(format!(
                "a lock name may have {} bytes at most, this one has {bytes}",
                Self::MAX_BYTES
            ))),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Writes the name with nothing but bytes that `plain` accepts.
    ///
    /// Every other byte, and always `%`, becomes `%XX`. Different names stay
    /// different, plain names stay readable, and [`unescape`](Self::unescape)
    /// is the way back. `plain` must accept the hexadecimal digits `0-9A-F`.
    pub fn escape(&self, plain: impl Fn(u8) -> bool) -> String {
        let mut out = String::with_capacity(self.0.len());
        for &byte in self.0.as_bytes() {
            if byte != b'%' && byte.is_ascii() && plain(byte) {
                out.push(char::from(byte));
            } else {
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
        out
    }

    /// Reads what [`escape`](Self::escape) wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `text` was not written by it.
    pub fn unescape(text: &str) -> Result<Self> {
        let bad = || invalid(format!("{text:?} is not an escaped lock name"));
        let mut out = Vec::with_capacity(text.len());
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            let (Some(high), Some(low)) = (bytes.next(), bytes.next()) else { return Err(bad()) };
            let digit = |b: u8| HEX.iter().position(|&h| h == b).ok_or_else(bad);
            // Both are below 16, so the sum fits.
            out.push((digit(high)? * 16 + digit(low)?) as u8);
        }
        LockName::new(String::from_utf8(out).map_err(|_| bad())?)
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        LockName::new(name)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> String {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
    }

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(LockName::new("orders-42").unwrap().escape(plain), "orders-42");
    }

    #[test]
    fn escaping_is_injective_and_reversible() {
        let names = ["a/b", "a%2Fb", "a%2fb", "é", "É", "e\u{301}", "\0", "日本", "%", "%%"];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let name = LockName::new(name).unwrap();
            let escaped = name.escape(plain);
            assert!(escaped.bytes().all(|b| b == b'%' || plain(b)), "{escaped}");
            assert_eq!(LockName::unescape(&escaped).unwrap(), name);
            assert!(seen.insert(escaped));
        }
    }

    #[test]
    fn every_byte_survives_the_round_trip() {
        let all: String = (1..=127u8).map(char::from).chain("äß€𐍈".chars()).collect();
        let name = LockName::new(all).unwrap();
        assert_eq!(LockName::unescape(&name.escape(|_| false)).unwrap(), name);
        assert_eq!(LockName::unescape(&name.escape(plain)).unwrap(), name);
    }

    #[test]
    fn bad_escapes_are_refused() {
        for text in ["%", "%4", "%4g", "%ff", "%FF", "", "a%2"] {
            assert!(LockName::unescape(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn length_counts_bytes() {
        assert!(LockName::new("é".repeat(256)).is_ok());
        assert!(LockName::new("é".repeat(257)).is_err());
    }
}
