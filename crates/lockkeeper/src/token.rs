//! Tokens and the ids behind every claim.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, invalid};

/// A number that only grows per name: the fencing token of an exclusive grant.
///
/// Send it along with every write to the thing the lock protects, and let that
/// thing refuse a token lower than the highest it has seen (see
/// [`Fence`](crate::Fence)). Only a checked token protects data from a holder
/// that was paused and does not know yet that it was replaced.
///
/// In JSON a token is a string, because engines issue numbers above 2^53.
///
/// # Examples
/// ```
/// use lockkeeper::Token;
///
/// let older: Token = "17".parse()?;
/// assert!(older < Token::new(18));
/// assert_eq!(older.to_string(), "17");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// Lower than every token ever granted.
    pub const ZERO: Token = Token(0);

    /// Makes a token from a number that was stored or passed along.
    pub const fn new(number: u64) -> Self {
        Token(number)
    }

    /// The number, for a column or a header.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The lowest token above this one.
    pub(crate) const fn next(self) -> Self {
        Token(self.0.saturating_add(1))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Token {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Token).map_err(|_| {
            invalid(format!("{text:?} is not a token: it must be a whole number below 2^64"))
        })
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&self.0)
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Token;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token as a string of digits")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Token, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Token, E> {
                Ok(Token(number))
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Either)
        } else {
            deserializer.deserialize_u64(Either)
        }
    }
}

/// Names one keeper for its life; 128 random bits, so that no two are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeeperId(u128);

impl KeeperId {
    /// Draws a new id from the operating system's randomness.
    pub(crate) fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::new(crate::ErrorKind::Unexpected, format!("no randomness to be had: {error}"))
        })?;
        Ok(KeeperId(u128::from_le_bytes(bytes)))
    }

    /// Makes a chosen id, for tests and models that need repeatable ones.
    pub const fn from_number(number: u128) -> Self {
        KeeperId(number)
    }
}

impl fmt::Display for KeeperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for KeeperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KeeperId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || invalid(format!("{text:?} is not a keeper id"));
        if text.len() != 32 {
            return Err(bad());
        }
        u128::from_str_radix(text, 16).map(KeeperId).map_err(|_| bad())
    }
}

/// The identity of one claim: minted once, never reused.
///
/// It starts with the keeper's id, so an engine knows whom to wake. `number`
/// counts the keeper's acquisitions; `turn` counts the claims of one
/// acquisition, which gets a fresh claim whenever the last one is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId {
    /// Whose claim it is.
    pub keeper: KeeperId,
    /// Which acquisition of that keeper.
    pub number: u64,
    /// Which claim of that acquisition, from 0.
    pub turn: u32,
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.keeper, self.number, self.turn)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClaimId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || invalid(format!("{text:?} is not a claim id"));
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or_else(bad);
        let id = ClaimId {
            keeper: part()?.parse()?,
            number: part()?.parse().map_err(|_| bad())?,
            turn: part()?.parse().map_err(|_| bad())?,
        };
        match parts.next() {
            None => Ok(id),
            Some(_) => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_string_in_json_and_a_number_in_records() {
        let big = Token::new(u64::MAX);
        let json = serde_json::to_string(&big).unwrap();
        assert_eq!(json, "\"18446744073709551615\"");
        assert_eq!(serde_json::from_str::<Token>(&json).unwrap(), big);
        let bytes = postcard::to_allocvec(&Token::new(5)).unwrap();
        assert_eq!(bytes, [5]);
        assert_eq!(postcard::from_bytes::<Token>(&bytes).unwrap(), Token::new(5));
    }

    #[test]
    fn a_claim_id_reads_back() {
        let id = ClaimId { keeper: KeeperId::from_number(7), number: 3, turn: 1 };
        assert_eq!(id.to_string().parse::<ClaimId>().unwrap(), id);
        for bad in ["", "7-3-1", "x", &format!("{id}-9"), &id.to_string().replace("-1", "")] {
            assert!(bad.parse::<ClaimId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keeper_ids_differ() {
        assert_ne!(KeeperId::random().unwrap(), KeeperId::random().unwrap());
    }
}
