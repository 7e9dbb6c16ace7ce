//! Keeps what engines learn of their drafts for the next start: now and then, and at a clean end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::Learned;
use faser_loading::costs::LearnedFile;
use faser_openai::pairs::Served;

/// What is learned between two times is lost where a daemon does not end cleanly.
pub(crate) const INTERVAL: Duration = Duration::from_secs(300);

/// Every pair of which it is kept.
#[derive(Default)]
pub(crate) struct KeptPairs(Vec<Rc<KeptPair>>);

struct KeptPair {
    served: Arc<Served>,
    file: LearnedFile,
    /// What was learned when the file was written last, or at the start.
    written: RefCell<Learned>,
}

impl KeptPairs {
    /// Keeps it of this pair too, from what it knows now on.
    pub(crate) async fn add(&mut self, served: &Arc<Served>, file: LearnedFile) {
        let written = RefCell::new(served.service.learned().await.unwrap_or_default());
        self.0.push(Rc::new(KeptPair { served: Arc::clone(served), file, written }));
    }

    /// Writes what has changed, of all pairs at once: one whose dispatchers hang holds up no other.
    pub(crate) async fn write(&self) {
        let write = |pair: &Rc<KeptPair>| {
            let pair = Rc::clone(pair);
            actix_web::rt::spawn(async move { pair.write().await })
        };
        let writes: Vec<_> = self.0.iter().map(write).collect();
        for write in writes {
            // A panic there is in the log already.
            let _ = write.await;
        }
    }
}

impl KeptPair {
    async fn write(&self) {
        let Some(learned) = self.served.service.learned().await else { return };
        if *self.written.borrow() == learned {
            return;
        }
        let file = self.file.clone();
        // It waits for the disk. A panic there is in the log already.
        let _ = actix_web::rt::task::spawn_blocking(move || file.write(&learned)).await;
        self.written.replace(learned);
    }
}
