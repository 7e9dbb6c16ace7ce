//! Reloads without a service: what is applied, what waits, what is refused.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::Level;

use super::*;

type Levels = Arc<Mutex<Vec<Level>>>;

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("faser-reload-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn write(&self, text: &str) {
        std::fs::write(self.0.join("faser.yaml"), text).unwrap();
    }

    fn reload(&self) -> (Reload, Levels) {
        let file = self.0.join("faser.yaml");
        let flags = vec![("server.listen", "--listen", json!("127.0.0.1:9"))];
        let source = ConfigSource { file: Some(file), flags };
        let levels = Levels::default();
        let level = LogLevel::told(Arc::clone(&levels));
        let running = source.document().unwrap();
        let config = Config::from_document(&running).unwrap();
        (Reload::new(source, running, config, level), levels)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind in the temporary folder it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn run(reload: &mut Reload) -> Result<String, String> {
    reload.run(None).await.map(|changes| changes.to_string()).map_err(|err| err.to_string())
}

#[actix_web::test]
async fn live_keys_are_applied_others_wait_and_an_invalid_file_changes_nothing() {
    let folder = Folder::new("file");
    folder.write("log: {level: warn}\n");
    let (mut reload, levels) = folder.reload();
    assert_eq!(run(&mut reload).await.unwrap(), "nothing has changed");
    // The flag goes on hiding the file's key.
    folder.write("log: {level: debug}\nserver: {workers: 5, listen: '127.0.0.1:10'}\n");
    assert_eq!(reload.pending().unwrap(), ["log.level", "server.workers"]);
    let tag = reload.tag();
    assert_eq!(run(&mut reload).await.unwrap(), "applied: log.level; needs a restart: server.workers");
    assert_ne!(reload.tag(), tag);
    assert_eq!((reload.config().log.level, reload.config().server.workers), (Level::DEBUG, 2));
    // What waits for a restart goes on waiting, what is in force is no change.
    let tag = reload.tag();
    assert_eq!(run(&mut reload).await.unwrap(), "needs a restart: server.workers");
    folder.write("log: {level: trace, colour: red}\n");
    assert!(run(&mut reload).await.unwrap_err().contains("log.colour"), "an unknown key");
    folder.write("log: [");
    assert!(run(&mut reload).await.unwrap_err().contains("YAML"));
    assert_eq!((reload.tag(), reload.config().log.level), (tag, Level::DEBUG));
    folder.write("");
    assert_eq!(run(&mut reload).await.unwrap(), "applied: log.level");
    drop(folder);
    assert!(run(&mut reload).await.unwrap_err().contains("cannot read"));
    assert_eq!(*levels.lock().unwrap(), [Level::WARN, Level::DEBUG, Level::DEBUG, Level::INFO]);
}

#[actix_web::test]
async fn keys_are_set_all_or_none_and_a_reload_brings_the_file_back() {
    let folder = Folder::new("set");
    folder.write("speculation: {policy: 'fixed:2'}\n");
    let (mut reload, _) = folder.reload();
    let changes = reload
        .set(&[("speculation.policy", json!("fixed:4")), ("speculation.k_max", json!(3))], None, None)
        .await
        .unwrap();
    assert_eq!(changes.to_string(), "applied: speculation.k_max, speculation.policy");
    assert_eq!(
        (&changes.applied[1].before, &changes.applied[1].after),
        (&json!("fixed:2"), &json!("fixed:4"))
    );
    assert_eq!(reload.config().tuning.k_max, Some(3));
    let tag = reload.tag();
    for keys in [
        [("speculation.k_max", json!(1)), ("speculation.policy", json!("fixed:99"))],
        [("speculation.k_max", json!(17)), ("speculation.policy", json!("off"))],
    ] {
        assert!(matches!(reload.set(&keys, None, None).await, Err(ReloadError::Config(_))), "{keys:?}");
        assert_eq!(reload.tag(), tag);
    }
    assert!(reload.expect(Some(&format!("\"{tag}\""))).is_ok() && reload.expect(None).is_ok());
    assert!(matches!(reload.expect(Some("other")), Err(ReloadError::Outdated(_))));
    // The default again.
    reload.set(&[("speculation.k_max", Value::Null)], None, None).await.unwrap();
    assert_eq!(reload.config().tuning.k_max, None);
    assert_eq!(run(&mut reload).await.unwrap(), "applied: speculation.policy");
    assert_eq!(reload.config().tuning.policy.to_string(), "fixed:2");
}

#[actix_web::test]
async fn keys_of_a_pair_are_live_as_long_as_the_pairs_are_the_same() {
    let folder = Folder::new("pairs");
    let pairs = |k: usize| {
        format!(
            "speculation: {{k_max: 8}}\npairs:\n- {{name: a}}\n- {{name: b, speculation: {{k_max: {k}}}}}\n"
        )
    };
    folder.write(&pairs(2));
    let (mut reload, _) = folder.reload();
    folder.write(&pairs(3).replace("{name: a}", "{name: a, kv: {block_size: 32}}"));
    let changes = reload.run(None).await.unwrap();
    assert_eq!(
        changes.to_string(),
        "applied: pairs[1].speculation.k_max; needs a restart: pairs[0].kv.block_size"
    );
    assert_eq!((&changes.applied[0].before, &changes.applied[0].after), (&json!(2), &json!(3)));
    let k_max =
        |reload: &Reload| reload.config().each().iter().map(|pair| pair.tuning.k_max).collect::<Vec<_>>();
    assert_eq!(k_max(&reload), [Some(8), Some(3)]);
    // What is said for all counts for those that say nothing themselves.
    folder.write(&pairs(3).replace("k_max: 8", "k_max: 9"));
    assert_eq!(run(&mut reload).await.unwrap(), "applied: speculation.k_max");
    assert_eq!(k_max(&reload), [Some(9), Some(3)]);
    // Of one pair, of all, and of one what is said for all.
    for (pair, k, wanted) in [
        (Some(0), json!(1), [Some(1), Some(3)]),
        (None, json!(5), [Some(5), Some(5)]),
        (Some(1), json!(6), [Some(5), Some(6)]),
        (Some(1), Value::Null, [Some(5), Some(5)]),
    ] {
        reload.set(&[("speculation.k_max", k)], pair, None).await.unwrap();
        assert_eq!(k_max(&reload), wanted);
    }
    run(&mut reload).await.unwrap();
    assert_eq!(k_max(&reload), [Some(9), Some(3)]);
    // A pair in another's place is another pair.
    folder.write(&pairs(4).replace("{name: a}", "{name: c}"));
    assert_eq!(
        run(&mut reload).await.unwrap(),
        "applied: speculation.k_max; needs a restart: pairs[0].name, pairs[1].speculation.k_max"
    );
    folder.write("log: {level: debug}\n");
    let changes = run(&mut reload).await.unwrap();
    assert!(
        changes.starts_with("applied: log.level") && changes.contains("restart: pairs[0].name"),
        "{changes}"
    );
}

#[test]
fn every_live_key_is_one_of_the_config_and_says_what_is_in_force() {
    let document =
        Document::read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/laptop.yaml"))
            .unwrap();
    let config = Config::from_document(&document).unwrap();
    for live in LIVE.iter() {
        let key = live.key;
        let written = key.split('.').try_fold(document.root(), |value, name| value.get(name));
        assert_eq!(written.unwrap_or(&Value::Null), &live.value(&config), "{key}");
    }
    assert!(LIVE.is_sorted_by(|a, b| a.key < b.key));
}
