//! The keys of names.

use crate::name::LockName;

/// The key of a name's record. Its braces are the cluster's hash tag.
pub(super) fn key(prefix: &str, name: &LockName) -> String {
    let name = name.as_str();
    let mut key = String::with_capacity(prefix.len() + name.len() + 2);
    key.push_str(prefix);
    key.push('{');
    escape(name.as_bytes(), &mut key);
    key.push('}');
    key
}

/// The name behind the key of a record.
pub(super) fn name_of(prefix: &str, key: &str) -> Option<LockName> {
    let name = key.strip_prefix(prefix)?.strip_prefix('{')?.strip_suffix('}')?;
    LockName::unescape(name).ok()
}

/// A pattern of SCAN for the records of all names that start like this.
pub(super) fn pattern(prefix: &str, start: &str) -> String {
    let mut escaped = String::new();
    escape(start.as_bytes(), &mut escaped);
    format!("{}{{{}*}}", glob(prefix), glob(&escaped))
}

/// Writes a name, or the start of one, as keys have it.
fn escape(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        if byte.is_ascii_graphic() && !b"%{}".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// A text that matches itself in a pattern.
fn glob(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_injective_and_keep_one_hash_tag() {
        for name in ["orders/42", "a b", "{a}", "}", "%7B", "é", "a:q", "*?[", "\0"] {
            let name = LockName::new(name).unwrap();
            let key = key("lk:", &name);
            assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
            assert_eq!(name_of("lk:", &key), Some(name));
        }
        assert_eq!(key("lk:", &LockName::new("orders/42").unwrap()), "lk:{orders/42}");
        assert_eq!(name_of("lk:", "lk:{a}:q"), None);
    }

    #[test]
    fn patterns_match_themselves() {
        assert_eq!(pattern("lk:", "a*é"), "lk:{a\\*%C3%A9*}");
    }
}
