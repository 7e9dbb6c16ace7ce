//! Keeps what engines learn of their drafts for the next start: now and then, and at a clean end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::Learned;
use faser_loading::costs::LearnedFile;
use faser_openai::pairs::Served;

/// What is learned between two times is lost where a daemon does not end cleanly.
pub(crate) const INTERVAL: Duration = Duration::from_secs(300);

/// Every pair of which it is kept.
#[derive(Default)]
pub(crate) struct KeptPairs(Vec<KeptPair>);

struct KeptPair {
    served: Arc<Served>,
    file: LearnedFile,
    /// What the file says.
    written: RefCell<Learned>,
}

impl KeptPairs {
    /// Keeps it of this pair too.
    pub(crate) fn add(&mut self, served: &Arc<Served>, file: LearnedFile) {
        let written = RefCell::new(served.bounds.learned);
        self.0.push(KeptPair { served: Arc::clone(served), file, written });
    }

    /// Writes what has changed. A pair whose dispatchers hang is left out.
    pub(crate) async fn write(&self) {
        for KeptPair { served, file, written } in &self.0 {
            let Some(learned) = served.service.learned().await else { continue };
            if *written.borrow() == learned {
                continue;
            }
            let file = file.clone();
            // It waits for the disk. A panic there is in the log already.
            let _ = actix_web::rt::task::spawn_blocking(move || file.write(&learned)).await;
            written.replace(learned);
        }
    }
}
