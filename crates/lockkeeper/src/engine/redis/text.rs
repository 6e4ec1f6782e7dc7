//! Texts with nothing in them that keys, records and URLs give a meaning to.

use std::fmt;

use super::config::bad;
use crate::error::Result;

/// Writes text with nothing but printable bytes and no space; `%XX` for the others.
pub(super) fn encode(text: &str) -> String {
    use fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !b"%?&{}".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Reads what [`encode`] wrote, and what people write in URLs.
pub(super) fn decode(text: &str) -> Result<String> {
    let broken = || bad("a %XX in a redis URL is broken");
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (pair, after) = rest.split_at_checked(2).ok_or_else(broken)?;
        let pair = std::str::from_utf8(pair).map_err(|_| broken())?;
        out.push(u8::from_str_radix(pair, 16).map_err(|_| broken())?);
        rest = after;
    }
    String::from_utf8(out).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_reversible() {
        for text in ["", "plain", "with space", "é%{}\n\0?&", "100%"] {
            let encoded = encode(text);
            assert!(encoded.bytes().all(|b| b.is_ascii_graphic()), "{encoded}");
            assert_eq!(decode(&encoded).unwrap(), text);
        }
    }
}
