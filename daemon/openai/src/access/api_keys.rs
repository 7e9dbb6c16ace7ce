//! API keys: who may use the API, and how many requests each has in flight. A key is kept as its digest, and never shown.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest::{SHA256, digest};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Characters of a key. Shorter ones can be guessed.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=512;
/// Keys of one file: each is compared with for every request.
const MOST_KEYS: usize = 4096;
const LONGEST_NAME: usize = 64;

type Digest = [u8; 32];

/// The keys that count now.
#[derive(Default)]
pub struct Keys(RwLock<Arc<Table>>);

/// A list of keys with its limit. None at all: everybody may come.
#[derive(Default)]
pub struct Table {
    keys: Vec<Arc<Key>>,
    per_key: Option<usize>,
}

/// One key.
struct Key {
    name: String,
    digest: Digest,
    active: AtomicUsize,
}

/// A request of a key in flight, until it is dropped.
pub struct Permit(Arc<Key>);

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no key.
    Missing,
    /// Its key is none of ours.
    Wrong,
    /// Its key has as many requests in flight as it may: so many.
    Busy(usize),
}

impl Keys {
    /// The name and place of a request whose header `Authorization` is `header`; `None` where there are no keys.
    ///
    /// # Errors
    /// It is not let in.
    pub fn admit(&self, header: Option<&[u8]>) -> Result<Option<Permit>, Refusal> {
        let table = self.table();
        if table.keys.is_empty() {
            return Ok(None);
        }
        let key = header.and_then(bearer).ok_or(Refusal::Missing)?;
        let key = table.find(key).ok_or(Refusal::Wrong)?;
        Permit::take(key, table.per_key.unwrap_or(usize::MAX)).map(Some)
    }

    /// Whether everybody may come.
    pub fn is_empty(&self) -> bool {
        self.table().keys.is_empty()
    }

    /// Puts other keys in place of these; what those that stay have in flight goes on counting. Says whether anything has changed.
    pub fn replace(&self, mut table: Table) -> bool {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let old: HashMap<(&str, Digest), &Arc<Key>> =
            now.keys.iter().map(|key| ((key.name.as_str(), key.digest), key)).collect();
        let mut stay = 0;
        for key in &mut table.keys {
            if let Some(old) = old.get(&(key.name.as_str(), key.digest)) {
                stay += 1;
                *key = Arc::clone(old);
            }
        }
        let changed = stay != now.keys.len() || stay != table.keys.len();
        *now = Arc::new(table);
        changed
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table {
    /// Reads a file of keys: `KEY` or `NAME:KEY` in a line, and comments behind `#`. At most `per_key` requests of each in flight.
    ///
    /// # Errors
    /// A line is none of these, a name or key is there twice, or there is no key. No error shows a key.
    pub fn parse(text: &str, per_key: Option<usize>) -> Result<Table, String> {
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let refuse = |problem: String| Err(format!("line {number}: {problem}"));
            let (name, key) = match line.split_once(':') {
                Some((name, key)) => (name.trim().to_owned(), key.trim()),
                None => (format!("line-{number}"), line),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
                return refuse(format!(
                    "the name in front of the colon has 1 to {LONGEST_NAME} letters, digits, dots, dashes"
                ));
            }
            if !LENGTHS.contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let (least, most) = (LENGTHS.start(), LENGTHS.end());
                return refuse(format!(
                    "a key has {least} to {most} letters, digits and signs, without spaces"
                ));
            }
            let digest = of(key.as_bytes());
            if keys.iter().any(|other| other.name == name) {
                return refuse(format!("the name `{name}` is there already"));
            }
            if let Some(other) = keys.iter().find(|other| other.digest == digest) {
                return refuse(format!("the same key is there already, as `{}`", other.name));
            }
            if keys.len() == MOST_KEYS {
                return refuse(format!("there are more than {MOST_KEYS} keys"));
            }
            keys.push(Arc::new(Key { name, digest, active: AtomicUsize::new(0) }));
        }
        if keys.is_empty() {
            return Err("there is no key in it: write one a line, `KEY` or `NAME:KEY`".to_owned());
        }
        Ok(Table { keys, per_key })
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Compares with every key, in a time that tells neither which one it is nor how much of it is right.
    fn find(&self, key: &[u8]) -> Option<&Arc<Key>> {
        let digest = of(key);
        let mut found = Choice::from(0);
        let mut place = 0_u32;
        for (index, key) in (0_u32..).zip(&self.keys) {
            let same = key.digest.ct_eq(&digest);
            place.conditional_assign(&index, same);
            found |= same;
        }
        if bool::from(found) { self.keys.get(place as usize) } else { None }
    }
}

impl Permit {
    fn take(key: &Arc<Key>, most: usize) -> Result<Permit, Refusal> {
        let mut active = key.active.load(Ordering::Relaxed);
        while active < most {
            match key.active.compare_exchange_weak(active, active + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(Permit(Arc::clone(key))),
                Err(now) => active = now,
            }
        }
        Err(Refusal::Busy(most))
    }

    /// What the key is called: for logs, which never show the key.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A number of the key's own, never 0, which tells nothing of it: a name may be another key's after a reload.
    pub fn owner(&self) -> u128 {
        let digest = of(&self.0.digest);
        digest.iter().take(16).fold(0, |owner: u128, byte| owner << 8 | u128::from(*byte)).max(1)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("keys", &self.keys.len())
            .field("per_key", &self.per_key)
            .finish_non_exhaustive()
    }
}

/// The key of a header `Authorization`, if it has one.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let space = header.iter().position(|byte| *byte == b' ')?;
    let (scheme, key) = header.split_at(space);
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !key.is_empty()).then_some(key)
}

fn of(key: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, key).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "sk-alice-0123456789";
    const OTHER: &str = "sk-other-0123456789";

    fn keys(text: &str, per_key: Option<usize>) -> Keys {
        let keys = Keys::default();
        assert!(keys.replace(Table::parse(text, per_key).unwrap()));
        keys
    }

    fn admitted(keys: &Keys, header: &str) -> Result<String, Refusal> {
        keys.admit(Some(header.as_bytes()))
            .map(|permit| permit.map_or_else(String::new, |permit| permit.name().to_owned()))
    }

    #[test]
    fn a_key_is_let_in_by_its_name_and_nothing_else_is() {
        let keys = keys(&format!("# ours\n\n alice : {ALICE}\r\n{OTHER}\n"), None);
        assert_eq!(admitted(&keys, &format!("Bearer {ALICE}")).unwrap(), "alice");
        assert_eq!(admitted(&keys, &format!("bearer   {OTHER} ")).unwrap(), "line-4");
        for wrong in ["x", &ALICE[1..], &format!("{ALICE}x"), "sk-alice-0123456780", &"k".repeat(10_000)] {
            assert_eq!(admitted(&keys, &format!("Bearer {wrong}")), Err(Refusal::Wrong), "{wrong}");
        }
        for none in ["", "Bearer", "Bearer ", &format!("Basic {ALICE}"), ALICE] {
            assert_eq!(admitted(&keys, none), Err(Refusal::Missing), "{none}");
        }
        assert!(matches!(keys.admit(None), Err(Refusal::Missing)));
    }

    #[test]
    fn without_keys_everybody_may_come() {
        let keys = Keys::default();
        assert!(keys.is_empty() && keys.admit(None).unwrap().is_none());
        assert!(keys.admit(Some(b"Bearer anything")).unwrap().is_none());
    }

    #[test]
    fn each_key_has_its_places_and_keeps_them_when_the_file_is_read_again() {
        let both = format!("a:{ALICE}\nb:{OTHER}\n");
        let keys = keys(&both, Some(2));
        let (alice, other) = (format!("Bearer {ALICE}"), format!("Bearer {OTHER}"));
        let first = keys.admit(Some(alice.as_bytes())).unwrap();
        let second = keys.admit(Some(alice.as_bytes())).unwrap();
        assert_eq!(admitted(&keys, &alice), Err(Refusal::Busy(2)));
        assert_eq!(admitted(&keys, &other).unwrap(), "b");
        assert!(!keys.replace(Table::parse(&both, Some(2)).unwrap()), "the same");
        assert_eq!(admitted(&keys, &alice), Err(Refusal::Busy(2)));
        drop(second);
        assert_eq!(admitted(&keys, &alice).unwrap(), "a");
        assert!(keys.replace(Table::parse(&format!("b:{OTHER}"), Some(2)).unwrap()));
        assert_eq!(admitted(&keys, &alice), Err(Refusal::Wrong));
        drop(first);
        assert!(keys.replace(Table::default()) && keys.is_empty());
    }

    #[test]
    fn files_that_are_wrong_are_refused_by_line_and_never_shown() {
        for (text, part) in [
            ("", "no key"),
            ("# only a comment\n", "no key"),
            ("secret\n", "line 1: a key has 16"),
            ("a:\n", "line 1: a key has 16"),
            (&format!("\n{} secret", "k".repeat(20)), "line 2: a key has 16"),
            (&format!("schlüssel-secret{}", "k".repeat(20)), "line 1: a key has 16"),
            (&"k".repeat(513), "line 1: a key has 16 to 512"),
            (&format!("the boss:{ALICE}"), "line 1: the name"),
            (&format!(":{ALICE}"), "line 1: the name"),
            (&format!("a:{ALICE}\na:{OTHER}"), "line 2: the name `a`"),
            (&format!("a:{ALICE}\nb:{ALICE}"), "line 2: the same key is there already, as `a`"),
        ] {
            let err = Table::parse(text, None).unwrap_err();
            assert!(err.contains(part), "{text:?}: {err}");
            assert!(!err.contains("sk-") && !err.contains("secret") && !err.contains("kkk"), "{err}");
        }
        let table = Table::parse(ALICE, None).unwrap();
        assert!(!format!("{table:?}").contains("alice") && table.len() == 1 && !table.is_empty());
    }
}
