//! Which node stands for what: the layout of Apache Curator's recipes.
//!
//! | Node below the chroot | |
//! |---|---|
//! | `NAME/_c_UUID-lock-N` | a claim on a mutex |
//! | `NAME/_c_UUID-__WRIT__N`, `…-__READ__N` | claims on a read/write lock |
//! | `NAME/locks/_c_UUID-lock-N` | a claim that waits for permits |
//! | `NAME/leases/_c_UUID-lease-N` | a permit |
//! | `NAME/capacity`, `NAME/latch`, `NAME/fence` | numbers, see `cells` |
//! | `%lockkeeper/…` | ours alone: proofs of life, reasons of breaks |
//!
//! `N` is the number the server gives out: ten digits, the order of arrival.

use crate::engine::{Claim, Kind, Mode};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::name::LockName;
use crate::token::{ClaimId, KeeperId};

/// What is ours alone; no name is ever written like this.
pub(super) const OURS: &str = "/%lockkeeper";
/// From here on the server's numbers are about to stick at their end, and two
/// claims could get the same one.
const LAST_SEQUENCE: i64 = 2_147_000_000;
/// How many children a node may have before a list of them could burst the
/// megabyte that clients and servers take by default.
pub(super) const MAX_CHILDREN: usize = 15_000;

/// The node of a name.
pub(super) fn dir(name: &LockName) -> String {
    format!("/{}", component(name))
}

/// A name as one component of a path.
pub(super) fn component(name: &LockName) -> String {
    match name.as_str() {
        // These mean something else to the server.
        "." | ".." => name.escape(|byte| byte.is_ascii_alphanumeric()),
        "zookeeper" => name.escape(|byte| byte.is_ascii_alphanumeric() && byte != b'z'),
        _ => name.escape(|byte| byte.is_ascii_graphic() && byte != b'/'),
    }
}

/// The name behind a component of a path, if it is one.
pub(super) fn name_of(text: &str) -> Option<LockName> {
    LockName::unescape(text).ok().filter(|name| component(name) == text)
}

/// What kind of contender a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tag {
    Lock,
    // Before the read that steps down from it and so has its number.
    Write,
    Read,
    Lease,
}

impl Tag {
    /// The tag of a claim's node in the queue.
    pub(super) fn of(mode: Mode) -> Tag {
        match mode {
            Mode::Exclusive | Mode::Permits { .. } => Tag::Lock,
            Mode::Write => Tag::Write,
            Mode::Read => Tag::Read,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Tag::Lock => "lock-",
            Tag::Write => "__WRIT__",
            Tag::Read => "__READ__",
            Tag::Lease => "lease-",
        }
    }
}

/// A node of somebody who holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) node: String,
    pub(super) tag: Tag,
    pub(super) sequence: i64,
}

impl Child {
    /// Reads the name of a node; `None` if it is no contender.
    pub(super) fn parse(node: &str) -> Option<Child> {
        let found = [Tag::Lock, Tag::Write, Tag::Read, Tag::Lease].into_iter().find_map(|tag| {
            let at = node.rfind(tag.text())?;
            let digits = &node[at + tag.text().len()..];
            let number = digits.strip_prefix('-').unwrap_or(digits);
            let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if plain { Some((tag, digits.parse().ok()?)) } else { None }
        });
        found.map(|(tag, sequence)| Child { node: node.to_owned(), tag, sequence })
    }

    /// The protected id in the node's name.
    pub(super) fn uuid(&self) -> Option<u128> {
        let text = self.node.strip_prefix("_c_")?.get(..36)?;
        u128::from_str_radix(&text.replace('-', ""), 16).ok()
    }

    fn key(&self) -> (i64, Tag) {
        (self.sequence, self.tag)
    }

    /// Whose node it is, as far as its name tells. Claims of other programs
    /// get an id that no claim of ours can have.
    pub(super) fn stranger(&self) -> ClaimId {
        let keeper = KeeperId::from_number(self.uuid().unwrap_or_default());
        ClaimId { keeper, number: self.sequence.unsigned_abs(), turn: u32::MAX }
    }
}

/// Refuses a sequence number that is near the end of what servers can count.
pub(super) fn check_sequence(dir: &str, sequence: i64) -> Result<()> {
    if (0..LAST_SEQUENCE).contains(&sequence) {
        return Ok(());
    }
    let text = format!(
        "the node {dir:?} has used up its sequence numbers: stop all its users, delete it, \
         and start them again"
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// The children of a name's node, in order.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Those who hold and wait, in order of arrival.
    pub(super) line: Vec<Child>,
    /// What else is there that tells what the name is used for.
    marks: Option<Kind>,
    /// A child that is none of all this.
    foreign: Option<String>,
    /// Whether the name's own node says something, see `delay`.
    pub(super) noted: bool,
}

impl View {
    pub(super) fn of(children: Vec<String>) -> View {
        let mut view = View::default();
        for node in children {
            match node.as_str() {
                "locks" | "leases" | "capacity" => view.marks = Some(Kind::Semaphore),
                "latch" => view.marks = Some(Kind::Latch),
                "fence" => view.marks = Some(Kind::Fence),
                _ => match Child::parse(&node) {
                    Some(child) => view.line.push(child),
                    None => view.foreign = Some(node),
                },
            }
        }
        view.line.sort_by_key(Child::key);
        view
    }

    /// The same, of a node whose own data is so long.
    pub(super) fn noted((children, length): (Vec<String>, i32)) -> View {
        View { noted: length > 0, ..View::of(children) }
    }

    /// What the name is used for, as its children tell.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.marks.or_else(|| self.line.first().map(|child| kind(child.tag)))
    }

    /// Refuses a name that is used for something else, by somebody who was
    /// there before `own`.
    pub(super) fn check(&self, wanted: Kind, dir: &str, own: Option<&Child>) -> Result<()> {
        if let Some(node) = &self.foreign {
            let text = format!("the node {dir:?} has a child that belongs to no lock: {node:?}");
            return Err(invalid(text));
        }
        let earlier = |child: &&Child| own.is_none_or(|own| child.sequence < own.sequence);
        let others = self.line.iter().filter(earlier).map(|child| kind(child.tag));
        match self.marks.into_iter().chain(others).find(|stored| *stored != wanted) {
            Some(stored) => Err(crate::model::Refusal::WrongKind { stored }.into()),
            None => Ok(()),
        }
    }

    /// Where a node stands in the line.
    pub(super) fn position(&self, node: &str) -> Option<usize> {
        self.line.iter().position(|child| child.node == node)
    }

    /// Whom a contender at this position waits for; `None` if it holds.
    ///
    /// One node only: the nearest that keeps it out. A reader waits for
    /// writers alone, everybody else for everybody.
    pub(super) fn blocker(&self, position: usize) -> Option<&Child> {
        let own = self.line.get(position)?;
        let mut before = self.line[..position].iter().rev();
        match own.tag {
            // A read that steps down has its write's number, and holds beside it.
            Tag::Read => before.find(|c| c.tag == Tag::Write && c.sequence < own.sequence),
            _ => before.next(),
        }
    }

    /// How many before this position wait.
    pub(super) fn waiting_before(&self, position: usize) -> usize {
        let first_write = self.line.iter().find(|child| child.tag == Tag::Write);
        let first_write = first_write.map_or(i64::MAX, |child| child.sequence);
        let waits = |(at, child): &(usize, &Child)| match child.tag {
            Tag::Read => child.sequence > first_write,
            _ => *at > 0,
        };
        self.line[..position].iter().enumerate().filter(waits).count()
    }
}

fn kind(tag: Tag) -> Kind {
    match tag {
        Tag::Lock => Kind::Mutex,
        Tag::Write | Tag::Read => Kind::ReadWrite,
        Tag::Lease => Kind::Semaphore,
    }
}

/// The start of the names of a claim's nodes. Curator, too, finds its nodes by it.
pub(super) fn protected(claim: ClaimId) -> String {
    let hex = format!("{:032x}", uuid(claim));
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("_c_{a}-{b}-{c}-{d}-{e}-")
}

/// A version 4 UUID for a claim: its keeper's random bits, and in the low ones
/// which of its claims it is, so that no two of a keeper are alike.
pub(super) fn uuid(claim: ClaimId) -> u128 {
    let keeper = u128::from_str_radix(&claim.keeper.to_string(), 16).unwrap_or_default();
    let turn = u128::from(claim.turn);
    // Below the variant bits there is room for 46 bits of number and 16 of
    // turn; the rest of a turn goes to the top.
    let which = (u128::from(claim.number) << 16) & ((1 << 62) - 1) | (turn & 0xFFFF);
    let mixed = keeper ^ which ^ ((turn >> 16) << 96);
    (mixed & !(0xF << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62)
}

/// Where a claim queues: the parent of its node, and the start of its path.
pub(super) fn queue(claim: &Claim) -> (String, String) {
    let dir = match claim.mode {
        Mode::Permits { .. } => locks(&dir(&claim.name)),
        _ => dir(&claim.name),
    };
    let prefix = format!("{dir}/{}{}", protected(claim.id), Tag::of(claim.mode).text());
    (dir, prefix)
}

pub(super) fn locks(dir: &str) -> String {
    format!("{dir}/locks")
}

pub(super) fn leases(dir: &str) -> String {
    format!("{dir}/leases")
}

/// The last part of a path.
pub(super) fn last(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, node)| node)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn names_are_one_component_each_and_all_differ() {
        let names = [
            "a",
            "a/b",
            "a%2Fb",
            "%",
            ".",
            "..",
            "...",
            "%2E",
            "zookeeper",
            "zookeeper2",
            "é",
            "\0",
            " ",
            "locks",
            "_c_x-lock-0000000001",
            "%lockkeeper",
            "日本",
            "/",
            "//",
        ];
        let mut seen = HashSet::new();
        for text in names {
            let part = component(&name(text));
            assert!(!part.contains('/') && part.is_ascii(), "{part}");
            assert!(!["", ".", "..", "zookeeper", "%lockkeeper"].contains(&&*part), "{part}");
            assert_eq!(name_of(&part), Some(name(text)));
            assert!(seen.insert(part));
        }
        assert_eq!(component(&name("orders-42")), "orders-42");
        for foreign in ["%lockkeeper", "zookeeper", "%2e", "a b", "%61"] {
            assert_eq!(name_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_claim_has_a_uuid_of_its_own_that_curator_can_read() {
        let mut seen = HashSet::new();
        for keeper in [0, 1 << 70, u128::MAX, 0x1234 << 84] {
            for number in [0, 1, 2, 1 << 40] {
                for turn in [0, 1, 65_535, 65_536, 1 << 20] {
                    let keeper = KeeperId::from_number(keeper);
                    let start = protected(ClaimId { keeper, number, turn });
                    assert_eq!(start.len(), 40, "{start}");
                    assert_eq!(&start[17..18], "4", "{start}");
                    assert!("89ab".contains(&start[22..23]), "{start}");
                    assert!(seen.insert(start));
                }
            }
        }
    }

    #[test]
    fn nodes_read_as_curator_reads_them() {
        let uuid = "6a15ca5e-6709-4bce-bb72-410eb8a69295";
        let child = Child::parse(&format!("_c_{uuid}-lock-0000000012")).unwrap();
        assert_eq!((child.tag, child.sequence), (Tag::Lock, 12));
        assert_eq!(child.uuid(), Some(0x6a15_ca5e_6709_4bce_bb72_410e_b8a6_9295));
        let child = Child::parse(&format!("_c_{uuid}-__WRIT__-2147483648")).unwrap();
        assert_eq!((child.tag, child.sequence), (Tag::Write, -2_147_483_648));
        // Not protected, as the oldest Curators write it.
        assert_eq!(Child::parse("lock-0000000003").unwrap().uuid(), None);
        for foreign in ["lock-", "x", "lock-12x", "0123__lock__0000000001", "lock--"] {
            assert_eq!(Child::parse(foreign), None, "{foreign}");
        }
    }

    fn view(nodes: &[&str]) -> View {
        View::of(nodes.iter().map(|node| (*node).to_owned()).collect())
    }

    #[test]
    fn everybody_waits_for_the_nearest_that_keeps_it_out() {
        let view = view(&[
            "d-__READ__0000000005",
            "a-__WRIT__0000000001",
            "a-__READ__0000000001",
            "c-__WRIT__0000000003",
            "b-__READ__0000000002",
        ]);
        let blockers: Vec<_> =
            (0..5).map(|at| view.blocker(at).map(|child| &child.node[..1])).collect();
        assert_eq!(blockers, [None, None, Some("a"), Some("b"), Some("c")]);
        assert_eq!((0..5).map(|at| view.waiting_before(at)).collect::<Vec<_>>(), [0, 0, 0, 1, 2]);
        assert_eq!(view.kind(), Some(Kind::ReadWrite));
    }

    #[test]
    fn another_kind_is_refused_to_whoever_comes_later() {
        let both = view(&["a-lock-0000000001", "b-__READ__0000000002"]);
        let child = |node| Child::parse(node).unwrap();
        both.check(Kind::Mutex, "/x", Some(&child("a-lock-0000000001"))).unwrap();
        let late = both.check(Kind::ReadWrite, "/x", Some(&child("b-__READ__0000000002")));
        assert!(late.unwrap_err().to_string().contains("mutex"));
        assert!(view(&["latch"]).check(Kind::Mutex, "/x", None).is_err());
        let foreign = view(&["brokers"]).check(Kind::Mutex, "/x", None).unwrap_err();
        assert!(foreign.to_string().contains("brokers"), "{foreign}");
    }

    #[test]
    fn sequence_numbers_near_their_end_are_refused() {
        for bad in [-1, -2_147_483_648, 2_147_000_000, 2_147_483_647] {
            assert_eq!(check_sequence("/x", bad).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        check_sequence("/x", 2_146_999_999).unwrap();
    }
}
