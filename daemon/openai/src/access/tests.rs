//! Where keys come from, and what may be listened on.

use std::fs;

use faser_config::Config;
use faser_config::raw::Document;

use super::*;

const KEY: &str = "sk-0123456789abcdef";

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("faser-access-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn server(&self, text: &str) -> ServerConfig {
        let document =
            Document::parse(&self.0.join("x.yaml"), format!("server: {{{text}}}\n")).expect("YAML");
        Config::from_document(&document).expect("a config").server
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn admits(access: &Access, key: &str) -> bool {
    access.keys().admit(Some(format!("Bearer {key}").as_bytes())).is_ok()
}

#[test]
fn keys_come_from_the_file_or_the_credential_and_the_file_goes_first() {
    let folder = Folder::new("sources");
    folder.write("keys", &format!("{KEY}\n"));
    folder.write(CREDENTIAL, &format!("{KEY}-credential\n"));
    let named = folder.server("api_keys_file: keys");
    let plain = folder.server("");
    let credentials = || Some(folder.0.clone());
    assert!(Access::with(&plain, None).unwrap().keys().is_empty());
    assert!(admits(&Access::with(&named, None).unwrap(), KEY));
    let access = Access::with(&plain, credentials()).unwrap();
    assert!(admits(&access, &format!("{KEY}-credential")) && !admits(&access, KEY));
    let access = Access::with(&named, credentials()).unwrap();
    assert!(admits(&access, KEY) && !admits(&access, &format!("{KEY}-credential")));
    assert!(Access::with(&plain, Some(folder.0.join("nothing"))).unwrap().keys().is_empty());
}

#[test]
fn what_cannot_be_used_is_named_without_a_key() {
    let folder = Folder::new("wrong");
    folder.write("keys", &format!("{KEY}\n{KEY}\n"));
    let refusal = |text: &str| Access::with(&folder.server(text), None).err().unwrap().to_string();
    let twice = refusal("api_keys_file: keys");
    assert!(twice.contains("keys: line 2") && !twice.contains(KEY), "{twice}");
    assert!(refusal("api_keys_file: absent").contains("absent: cannot be read"));
    assert!(refusal("max_concurrent_per_key: 3").contains("there are none"));
}

#[test]
fn beyond_this_machine_only_with_keys_or_on_purpose() {
    let folder = Folder::new("public");
    folder.write("keys", KEY);
    let without = folder.server("");
    let access = Access::with(&without, None).unwrap();
    for own in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        assert!(access.listen(own.parse().unwrap(), &without).is_ok(), "{own}");
    }
    let refusal = |address: &str| access.listen(address.parse().unwrap(), &without).unwrap_err().to_string();
    for public in ["0.0.0.0:80", "192.168.1.2:80", "[::]:80", "[::ffff:10.0.0.1]:80"] {
        let refusal = refusal(public);
        for way in ["api_keys_file", "allow_public_without_keys: true", "api-keys", public] {
            assert!(refusal.contains(way), "{way}: {refusal}");
        }
    }
    let public = "0.0.0.0:80".parse().unwrap();
    let on_purpose = folder.server("allow_public_without_keys: true");
    assert!(Access::with(&on_purpose, None).unwrap().listen(public, &on_purpose).is_ok());
    let with_keys = folder.server("api_keys_file: keys, max_concurrent_per_key: 2");
    let access = Access::with(&with_keys, None).unwrap();
    access.listen(public, &with_keys).unwrap();
    // Keys that are gone at a reload are the same as none at the start.
    assert!(access.read(&without).is_err() && admits(&access, KEY));
}

#[test]
fn a_reload_changes_all_or_nothing_and_says_what() {
    let folder = Folder::new("again");
    folder.write("keys", KEY);
    let server = folder.server("api_keys_file: keys");
    let access = Access::with(&server, None).unwrap();
    assert_eq!(access.read(&server).unwrap().apply(), [""; 0]);
    folder.write("keys", &format!("{KEY}-next"));
    let renewal = access.read(&server).unwrap();
    assert!(admits(&access, KEY), "nothing has changed yet");
    assert_eq!(renewal.apply(), ["server.api_keys_file"]);
    assert!(!admits(&access, KEY) && admits(&access, &format!("{KEY}-next")));
    folder.write("keys", "short");
    assert!(access.read(&server).is_err() && admits(&access, &format!("{KEY}-next")));
}
