//! A service manager as a daemon sees it: the other end of NOTIFY_SOCKET.

use std::{
    ffi::OsString,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::PATIENCE;

/// Everything it was told, in order: one list of `NAME=value` for each datagram.
#[derive(Debug)]
pub struct ServiceManager {
    folder: PathBuf,
    told: Arc<Mutex<Vec<Vec<String>>>>,
}

impl ServiceManager {
    /// Listens from now on.
    ///
    /// # Panics
    /// There is no place for its socket.
    pub fn listen() -> ServiceManager {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("faser-notify-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let socket = UnixDatagram::bind(folder.join("notify")).expect("a datagram socket");
        let told = Arc::new(Mutex::new(Vec::new()));
        // It ends with the test program: nothing wakes it before.
        std::thread::spawn({
            let told = Arc::clone(&told);
            move || {
                let mut datagram = [0; 4096];
                while let Ok(length) = socket.recv(&mut datagram) {
                    let text = String::from_utf8_lossy(&datagram[..length]).into_owned();
                    let lines = text.lines().map(str::to_owned).collect();
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(lines);
                }
            }
        });
        ServiceManager { folder, told }
    }

    /// The variable by which a daemon finds it.
    pub fn variable(&self) -> (&'static str, OsString) {
        ("NOTIFY_SOCKET", self.folder.join("notify").into())
    }

    /// What it was told so far.
    pub fn told(&self) -> Vec<Vec<String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many datagrams had this line.
    pub fn count(&self, line: &str) -> usize {
        self.told().iter().filter(|lines| lines.iter().any(|found| found == line)).count()
    }

    /// Waits for a datagram at or behind place `from` that `wanted` holds for; returns its place and lines.
    ///
    /// # Panics
    /// It does not come within [`PATIENCE`].
    pub fn wait_for(
        &self,
        what: &str,
        from: usize,
        wanted: impl Fn(&[String]) -> bool,
    ) -> (usize, Vec<String>) {
        let started = Instant::now();
        loop {
            let told = self.told();
            let found = told.iter().enumerate().skip(from).find(|(_, lines)| wanted(lines));
            if let Some((place, lines)) = found {
                return (place, lines.clone());
            }
            assert!(started.elapsed() < PATIENCE, "not told within {PATIENCE:?}: {what}\n{told:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        // A folder left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
