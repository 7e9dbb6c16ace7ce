//! The systemd units in configs: valid for systemd, and as closed as they claim to be.

use std::{path::PathBuf, process::Command};

use faser_tests::rules::root;

/// From this version on `systemd-analyze security` works without a running systemd.
const OFFLINE: u32 = 250;
/// From this version on there is Type=notify-reload.
const NOTIFY_RELOAD: u32 = 253;
/// The exposure that `systemd-analyze security` may find: 0 is none, 10 everything.
const MOST_EXPOSURE: f64 = 3.0;

/// systemd's version, if its tool for units is there; else the test is skipped, which is said past the harness.
fn version(test: &str) -> Option<u32> {
    let output = Command::new("systemd-analyze").arg("--version").output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = text.as_ref().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    let version = version.filter(|version| *version >= OFFLINE);
    if version.is_none() {
        let reason = "there is no systemd-analyze of systemd 250 or later (Debian's package systemd has it)";
        faser_skipped::skip(test, reason);
    }
    version
}

/// The units as they would be installed, in a folder of their own: of the program a name that exists here.
fn units(test: &str, version: u32) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("faser-units-{}-{test}", std::process::id()));
    std::fs::create_dir_all(folder.join("faser.service.d")).expect("a temporary folder can be made");
    let read = |name: &str| std::fs::read_to_string(root().join("configs").join(name)).expect(name);
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect(name);
    let service = read("faser.service");
    assert!(service.contains("\nExecStart=/usr/bin/faser serve "), "{service}");
    let program = std::env::current_exe().expect("a test program knows its path");
    write("faser.service", &service.replace("=/usr/bin/faser ", &format!("={} ", program.display())));
    write("faser.socket", &read("faser.socket"));
    write("faser-admin.socket", &read("faser-admin.socket"));
    if version >= NOTIFY_RELOAD {
        let name = "faser.service.d/notify-reload.conf";
        write(name, &read(name));
    }
    folder
}

#[test]
fn the_units_are_valid() {
    let Some(version) = version("the_units_are_valid") else { return };
    let folder = units("valid", version);
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .args(["faser.service", "faser.socket", "faser-admin.socket"].map(|unit| folder.join(unit)))
        .output()
        .expect("systemd-analyze can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // What it does not know it only warns of.
    let faults: Vec<&str> = said.lines().filter(|line| line.contains("faser")).collect();
    assert!(output.status.success() && faults.is_empty(), "{}: {said}", output.status);
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
}

#[test]
fn the_service_is_hardly_exposed() {
    let Some(version) = version("the_service_is_hardly_exposed") else { return };
    let folder = units("security", version);
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(folder.join("faser.service"))
        .output()
        .expect("systemd-analyze can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let overall = said.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_default();
    let exposure = overall.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(exposure.is_some_and(|exposure| exposure < MOST_EXPOSURE), "{}: {said}", output.status);
    println!("{overall}");
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
}

#[test]
fn a_daemon_without_a_device_is_started_again() {
    let service = std::fs::read_to_string(root().join("configs/faser.service")).expect("the unit");
    let set = |key: &str| service.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    assert_eq!(set("Restart"), Some("on-failure"));
    // What would take one of the daemon's exit statuses for a success, or keep it from being a reason.
    for key in ["SuccessExitStatus", "RestartPreventExitStatus", "RestartForceExitStatus"] {
        assert_eq!(set(key), None, "{key}");
    }
}

#[test]
fn the_drop_in_changes_the_type_alone() {
    let path = root().join("configs/faser.service.d/notify-reload.conf");
    let text = std::fs::read_to_string(path).expect("the drop-in");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["[Service]", "Type=notify-reload", "ExecReload="]);
}
