//! The parts that engine URLs have in common.

use std::fmt::Write;
use std::time::Duration;

use crate::error::{Error, Result, invalid};

/// The error of a URL that makes no sense. Never repeats a part of it, which
/// may be a secret that lost its place.
pub(crate) fn bad(message: impl Into<String>) -> Error {
    invalid(message).during("connect")
}

/// User and password, as far as a URL names them.
pub(crate) type Login = (Option<String>, Option<String>);

/// Takes `user:password@` off the front of a URL's body.
pub(crate) fn split_login(body: &str) -> Result<(Login, &str)> {
    // The last @: an unescaped one in a password is wrong, but must not make
    // half of the password a host name.
    let Some((login, rest)) = body.rsplit_once('@') else { return Ok(((None, None), body)) };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    Ok(((filled(decode(user)?), filled(decode(password)?)), rest))
}

/// The parameters of a URL, in order: what follows its `?`.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = Result<(&str, String)>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((key, decode(value)?))
    })
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
pub(crate) fn host_and_port(place: &str, default: u16) -> Result<(String, u16)> {
    let port = |text: &str| text.parse().map_err(|_| bad("a port is a number up to 65535"));
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| bad("an address lacks its ]"))?;
        match rest.strip_prefix(':') {
            Some(text) => (host.to_owned(), port(text)?),
            None if rest.is_empty() => (host.to_owned(), default),
            None => return Err(bad("there is something between an address and its port")),
        }
    } else {
        match place.split_once(':') {
            Some((host, text)) => (decode(host)?, port(text)?),
            None => (decode(place)?, default),
        }
    };
    if host.is_empty() { Err(bad("the URL needs a host")) } else { Ok((host, port)) }
}

/// Reads `250ms`, `2s` or `1m`: a limit for a connection or an answer.
pub(crate) fn span(key: &str, text: &str) -> Result<Duration> {
    match time(text) {
        Some(span) if span <= Duration::from_secs(60) => Ok(span),
        _ => Err(bad(format!("{key} is a time from 1ms to 1m, such as 300ms or 2s"))),
    }
}

/// Reads a time that is not zero.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    let millis = number.parse::<u64>().ok()?.saturating_mul(factor);
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// Writes text with nothing but printable bytes and no space; `%XX` for the others.
pub(crate) fn encode(text: &str) -> String {
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
pub(crate) fn decode(text: &str) -> Result<String> {
    let broken = || bad("a %XX in the URL is broken");
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

/// Text, unless it is empty.
pub(crate) fn filled(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
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

    #[test]
    fn a_login_ends_at_the_last_at_sign() {
        let some = |text: &str| Some(text.to_owned());
        for (body, login, rest) in [
            ("h/x", (None, None), "h/x"),
            ("u@h", (some("u"), None), "h"),
            (":p@h", (None, some("p")), "h"),
            ("u:p%2F:@h", (some("u"), some("p/:")), "h"),
            ("u:p@q@h", (some("u"), some("p@q")), "h"),
        ] {
            assert_eq!(split_login(body).unwrap(), (login, rest));
        }
    }

    #[test]
    fn parameters_are_read_in_order() {
        let read: Vec<_> = parameters("a=1&&b=%20=&c").map(|pair| pair.unwrap()).collect();
        let read: Vec<_> = read.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(read, [("a", "1"), ("b", " ="), ("c", "")]);
        assert!(parameters("a=%x").next().unwrap().is_err());
    }

    #[test]
    fn a_place_has_a_host_and_perhaps_a_port() {
        let read = |text| host_and_port(text, 7).unwrap();
        assert_eq!(read("h"), ("h".to_owned(), 7));
        assert_eq!(read("h:9"), ("h".to_owned(), 9));
        assert_eq!(read("[::1]"), ("::1".to_owned(), 7));
        assert_eq!(read("[::1]:9"), ("::1".to_owned(), 9));
        for text in ["", ":1", "h:x", "h:99999", "[::1", "[::1]x"] {
            assert!(host_and_port(text, 7).is_err(), "{text:?}");
        }
    }
}
