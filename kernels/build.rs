//! Puts cubins into the library, where there are some: `FASER_CUBINS` names a folder that `.ci/cubins` filled.
//! Without it the table is empty, and NVRTC compiles at start-up.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=FASER_CUBINS");
    let folder = env::var_os("FASER_CUBINS").filter(|folder| !folder.is_empty());
    let table = match folder {
        Some(folder) => {
            table(Path::new(&folder)).map_err(|why| format!("FASER_CUBINS={}: {why}", folder.display()))?
        }
        None => table_of(&[], (0, 0))?,
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo names no OUT_DIR")?);
    fs::write(out.join("prebuilt.rs"), table)?;
    Ok(())
}

fn table(folder: &Path) -> Result<String, Box<dyn Error>> {
    if !folder.is_absolute() {
        return Err("it must be an absolute path".into());
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    let made_by = fs::read_to_string(folder.join("nvrtc"))
        .map_err(|why| format!("its file `nvrtc` cannot be read ({why}): fill it by `.ci/cubins`"))?;
    let (major, minor) =
        made_by.trim().split_once('.').ok_or("its file `nvrtc` has no version such as 12.9")?;
    let mut cubins = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "cubin") {
            cubins.push(path);
        }
    }
    cubins.sort();
    if cubins.is_empty() {
        return Err("there is no cubin in it".into());
    }
    table_of(&cubins, (major.parse()?, minor.parse()?))
}

fn table_of(cubins: &[PathBuf], made_by: (i32, i32)) -> Result<String, Box<dyn Error>> {
    let mut text = String::from("const TABLE: &[(&str, &[u8])] = &[\n");
    for path in cubins {
        let name = path.file_stem().unwrap_or_default().display();
        writeln!(text, "    (\"{name}\", include_bytes!({path:?})),")?;
    }
    writeln!(text, "];\nconst MADE_BY: (i32, i32) = {made_by:?};")?;
    Ok(text)
}
