//! What a file must be: the hub tells the SHA-256 of large files (Git LFS) and Git's SHA-1 of small ones. Both are also the name of the file in
//! the cache.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// A file's checksum, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Checksum {
    /// Of the content.
    Sha256(String),
    /// Of `blob SIZE\0` and the content, as Git names blobs.
    Git(String),
}

impl Checksum {
    /// SHA-256, if `text` is one.
    pub(crate) fn sha256(text: &str) -> Option<Checksum> {
        is_hex(text, 64).then(|| Checksum::Sha256(text.to_ascii_lowercase()))
    }

    /// Git's, if `text` is one.
    pub(crate) fn git(text: &str) -> Option<Checksum> {
        is_hex(text, 40).then(|| Checksum::Git(text.to_ascii_lowercase()))
    }

    /// The digits.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Checksum::Sha256(digits) | Checksum::Git(digits) => digits,
        }
    }

    /// What checks a file of so many bytes.
    pub(crate) fn check(&self, size_bytes: u64) -> Check {
        match self {
            Checksum::Sha256(_) => Check(Context::new(&SHA256)),
            Checksum::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size_bytes}\0").as_bytes());
                Check(context)
            }
        }
    }
}

/// A file as it comes.
pub(crate) struct Check(Context);

impl Check {
    /// The next bytes of it.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Whether all of it is what it should be.
    pub(crate) fn is(self, wanted: &Checksum) -> bool {
        let digest = self.0.finish();
        let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        digits == wanted.digits()
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_sha256sum_and_git_hash_object() {
        // `printf 'hello\n' | sha256sum`, `printf 'hello\n' | git hash-object --stdin`.
        let sha256 =
            Checksum::sha256("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03").unwrap();
        let git = Checksum::git("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        for wanted in [&sha256, &git] {
            let of = |content: &[u8], size| {
                let mut check = wanted.check(size);
                content.chunks(4).for_each(|part| check.update(part));
                check.is(wanted)
            };
            assert!(of(b"hello\n", 6));
            assert!(!of(b"hellO\n", 6));
        }
        assert_eq!(
            (Checksum::sha256("5891"), Checksum::git("../../../../../../../../../../../../etc/x")),
            (None, None)
        );
    }
}
