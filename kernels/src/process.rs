//! What a process needs of the system: a copy of itself, children that end with it, and how the allocator holds its memory.

use std::io;
use std::process::Command;
use std::time::Duration;

/// Copies this process; the number of the copy, and none in the copy itself.
///
/// # Errors
/// The system refuses, or this process has other threads: what they hold would be held in the copy by nobody.
pub fn fork() -> io::Result<Option<i32>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be copied"));
    }
    // SAFETY: there is one thread, this one, so that no lock is held by one that is not there in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Has what `command` starts be killed once the thread that starts it has ended, however it ends. Linux alone knows of that.
pub fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        // SAFETY: prctl is all that runs between fork and exec: it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Ends this process by SIGPROF once its threads have taken so much processor time together, from now on. RLIMIT_CPU counts whole seconds.
///
/// # Errors
/// The system refuses.
pub fn end_after_cpu_time(time: Duration) -> io::Result<()> {
    // A timer of no time at all would be none.
    let micros = time.as_micros().max(1);
    let once = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval {
            tv_sec: (micros / 1_000_000) as libc::time_t,
            tv_usec: (micros % 1_000_000) as libc::suseconds_t,
        },
    };
    // SAFETY: `once` is there for the call, and the timer that was there before is not asked for. Nothing here handles that signal.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &once, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has glibc keep the memory of all threads in one place, where bounds on addresses are to mean memory: an arena of a thread's own takes
/// 128 MiB of addresses, used or not. Other allocators have nothing of the kind.
pub fn one_arena() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number, which the allocator reads when a thread first asks for memory.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives the system what the allocator keeps of freed memory. glibc does so by itself only at the end of an arena, so that a few small things
/// that live on hold all that was freed before them; each thread has an arena, and an idle one is never looked at. Worth it after work
/// that took much memory: it takes some milliseconds.
///
/// Other allocators than glibc's give memory back by themselves.
pub fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and locks each arena while it works on it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_copied() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(done);
        assert!(thread.join().is_ok());
    }

    // An emulator may start others in its own way.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn processor_time_is_bounded_however_many_threads_take_it() {
        use std::os::unix::process::ExitStatusExt;

        /// Set in the process that this test starts, which runs it again.
        const BOUNDED: &str = "FASER_TEST_BOUNDED_CPU_TIME";
        if std::env::var_os(BOUNDED).is_some() {
            end_after_cpu_time(Duration::from_millis(50)).expect("a timer");
            // Time alone does not count.
            std::thread::sleep(Duration::from_millis(200));
            println!("slept");
            let begun = std::time::Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while begun.elapsed() < Duration::from_secs(20) {
                            std::hint::spin_loop();
                        }
                    });
                }
            });
            return;
        }
        let name = "process::tests::processor_time_is_bounded_however_many_threads_take_it";
        let this = std::env::current_exe().expect("this binary");
        let ended = Command::new(this).args(["--exact", "--nocapture", name]).env(BOUNDED, "1").output();
        let ended = ended.expect("it runs");
        assert_eq!(ended.status.signal(), Some(libc::SIGPROF), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stdout).contains("slept"), "{ended:?}");
    }

    // An emulator may start others in its own way.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        use std::os::unix::process::ExitStatusExt;

        let start = || {
            let mut command = Command::new("sleep");
            end_with_parent(command.arg("60"));
            command.spawn().expect("a child")
        };
        let mut child = std::thread::spawn(start).join().expect("it starts");
        assert_eq!(child.wait().expect("an end").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn what_is_in_use_stays() {
        let numbers: Vec<Vec<u32>> = (0..1000).map(|i| vec![i; 1000]).collect();
        drop(numbers.iter().step_by(2).cloned().collect::<Vec<_>>());
        give_memory_back();
        assert!((0..).zip(&numbers).all(|(i, numbers)| *numbers == vec![i; 1000]));
    }
}
