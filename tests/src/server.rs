//! `faser serve` as a child process: started on a free loopback port with a config of the test's own, killed on drop.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{PATIENCE, client::Client, cost_cache, faser};

/// A config file in a folder of its own that goes with it.
#[derive(Debug)]
pub struct Config {
    folder: PathBuf,
}

impl Config {
    /// Writes `yaml` as `faser.yaml` into a new temporary folder.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn new(yaml: &str) -> Config {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("faser-tests-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        std::fs::write(folder.join("faser.yaml"), yaml).expect("a temporary file can be written");
        Config { folder }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("faser.yaml")
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `faser` with these arguments and this file.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(faser());
        command.args(arguments).arg("-c").arg(self.path()).env("CACHE_DIRECTORY", cost_cache());
        command
    }

    /// `faser serve` with this file, on a free port.
    pub fn serve(&self) -> Command {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // A folder left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    child: Mutex<Child>,
    client: Client,
    output: Arc<Mutex<String>>,
    config: Config,
}

impl Server {
    /// Starts a daemon with that config and waits until it says that it is ready.
    ///
    /// # Panics
    /// It ends or is not ready in time; the message has its output.
    pub fn start(yaml: &str) -> Server {
        Server::start_with(yaml, &[])
    }

    /// [`Server::start`] with these variables in the daemon's environment.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_with(yaml: &str, variables: &[(&str, OsString)]) -> Server {
        let config = Config::new(yaml);
        let mut command = config.serve();
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Server::run(config, command)
    }

    /// Starts a daemon by a command that ends in it, and waits until it says that it is ready.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn run(config: Config, mut command: Command) -> Server {
        let mut child = command
            .env("CACHE_DIRECTORY", cost_cache())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be started");
        let output = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take(), &output);
        collect(child.stderr.take(), &output);
        let address = wait_for_ready_line(&mut child, &output);
        Server { child: Mutex::new(child), client: Client::new(address), output, config }
    }

    /// A daemon shared by all tests of a program that run at the same time; `shared` is their static.
    pub fn shared(shared: &Mutex<Weak<Server>>, yaml: &str) -> Arc<Server> {
        let mut shared = lock(shared);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start(yaml));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// A client of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What it has written so far, results and log mixed.
    pub fn output(&self) -> String {
        lock(&self.output).clone()
    }

    /// Its config file, in a folder of its own.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The operators' socket, where its config has `admin: {socket: admin.sock}`.
    pub fn socket(&self) -> PathBuf {
        self.config.folder().join("admin.sock")
    }

    /// What `faser ctl` says there.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn ctl(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(faser());
        command.arg("ctl").arg("--socket").arg(self.socket()).args(arguments);
        said(&command.output().expect("the binary can be started"))
    }

    /// Writes its config file anew, which it may or may not read.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn rewrite_config(&self, yaml: &str) {
        std::fs::write(self.config.path(), yaml).expect("the config file can be written");
    }

    /// Writes a file beside its config file.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write(&self, name: &str, content: &str) {
        std::fs::write(self.config.folder().join(name), content).expect("a file can be written");
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// `kill` cannot be run.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by its name without SIG.
    ///
    /// # Panics
    /// `kill` cannot be run.
    pub fn signal(&self, name: &str) {
        let id = lock(&self.child).id().to_string();
        let killed = Command::new("kill").args([&format!("-{name}"), &id]).status().expect("kill can be run");
        assert!(killed.success(), "kill -{name} {id}: {killed}");
    }

    /// Bytes of memory that it has now.
    ///
    /// # Panics
    /// It has ended.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc().join("status")).expect("it runs, on Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// The daemon and the processes that it has started, and they.
    pub fn family(&self) -> Vec<u32> {
        let mut all = vec![lock(&self.child).id()];
        let mut at = 0;
        while let Some(&pid) = all.get(at) {
            at += 1;
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for task in tasks {
                let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
                all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        all
    }

    /// Memory of its own that the family has, in bytes.
    pub fn family_bytes(&self) -> u64 {
        let own = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        };
        self.family().iter().filter_map(own).sum::<u64>() << 10
    }

    /// Processor time that the living family has taken, in hundredths of a second.
    pub fn family_ticks(&self) -> u64 {
        let own = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
        };
        self.family().iter().filter_map(own).sum()
    }

    /// Descriptors that it has open now.
    ///
    /// # Panics
    /// It has ended.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(self.proc().join("fd")).expect("it runs, on Linux").count()
    }

    fn proc(&self) -> PathBuf {
        Path::new("/proc").join(lock(&self.child).id().to_string())
    }

    /// Waits until `wanted` holds.
    ///
    /// # Panics
    /// It does not within [`PATIENCE`].
    pub fn wait_for(&self, what: &str, wanted: impl Fn() -> bool) {
        let started = Instant::now();
        while !wanted() {
            assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end within [`PATIENCE`].
    pub fn wait(&self) -> ExitStatus {
        let ended = || lock(&self.child).try_wait().expect("a child can be waited for");
        self.wait_for("its end", || ended().is_some());
        ended().expect("it has ended")
    }

    /// SIGTERM, and the end that follows.
    ///
    /// # Panics
    /// It does not end, or not well.
    pub fn stop(&self) {
        self.terminate();
        self.ends_well();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end, or not well.
    pub fn ends_well(&self) {
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{status}\n{}", self.output());
    }
}

/// Exit status, and what was printed on both outputs.
pub fn said(output: &Output) -> (Option<i32>, String) {
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    (output.status.code(), text)
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself; either way nothing is left to do.
        let _ = child.kill();
        let _ = child.wait();
        if std::thread::panicking() {
            eprintln!("--- output of the daemon ---\n{}----------------------------", self.output());
        }
    }
}

/// A panicked test leaves the data usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn collect(pipe: Option<impl Read + Send + 'static>, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    let Some(pipe) = pipe else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut output = lock(&output);
            output.push_str(&line);
            output.push('\n');
        }
    });
}

fn wait_for_ready_line(child: &mut Child, output: &Mutex<String>) -> String {
    let started = Instant::now();
    loop {
        let ended = child.try_wait().expect("a child can be waited for");
        let so_far = lock(output).clone();
        let ready = so_far.lines().find(|line| line.starts_with("ready: "));
        if let Some((_, address)) = ready.and_then(|line| line.split_once("://")) {
            return address.trim().to_owned();
        }
        assert!(ended.is_none(), "faser serve ended with {ended:?}:\n{so_far}");
        if started.elapsed() > PATIENCE {
            // The panic drops no Server yet, so the child is ended here.
            let _ = child.kill();
            panic!("faser serve is not ready after {PATIENCE:?}:\n{so_far}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
