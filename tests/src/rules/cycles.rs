//! No cycle of uses between the modules (files) of a crate.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A module by the names on its path; none is the crate's root.
type Module = Vec<String>;

/// What a file says of other modules.
#[derive(Default)]
struct Uses {
    /// Imports: the path, the name it has here, and whether it is handed on (`pub use`).
    imports: Vec<(Vec<String>, String, bool)>,
    /// Paths of more than one name in its code.
    paths: BTreeSet<Vec<String>>,
    /// Inline modules around what is visited.
    depth: usize,
}

/// A fault for each cycle of modules of one crate; `files` are (path, source) of all crates. A module uses another if it names an item that is
/// defined there: what is handed on by `pub use` counts for where it comes from, and handing on is no use. Tests are left out.
///
/// # Panics
/// A file is no Rust.
pub fn faults(files: &[(String, String)]) -> Vec<String> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, Uses>> = BTreeMap::new();
    for (path, source) in files {
        let Some((folder, module)) = module_of(path) else { continue };
        let file = syn::parse_file(source).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut uses = Uses::default();
        uses.visit_file(&file);
        crates.entry(folder).or_default().insert(module, uses);
    }
    crates.iter().flat_map(|(folder, modules)| faults_of_crate(folder, modules)).collect()
}

/// `a/src/b/c.rs` is module `b::c` of crate `a`; files of tests, and a binary beside a library, are none.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let (folder, file) = path.split_once("/src/")?;
    let mut module: Module = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.iter().any(|name| name == "tests" || name.ends_with("_tests")) || module == ["main"] {
        return None;
    }
    if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
        module.pop();
    }
    Some((folder, module))
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&mut Vec::new(), &item.tree, public);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() && !item.attrs.iter().any(is_test) {
            self.depth += 1;
            visit::visit_item_mod(self, item);
            self.depth -= 1;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.scan(item.tokens.clone());
    }
}

fn is_test(attribute: &syn::Attribute) -> bool {
    matches!(&attribute.meta, syn::Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

impl Uses {
    fn import(&mut self, before: &mut Vec<String>, tree: &syn::UseTree, public: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(before, &path.tree, public);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(before, tree, public));
            }
            syn::UseTree::Glob(_) => self.add(before.clone(), "*".to_owned(), public),
            syn::UseTree::Name(name) => {
                let mut path = before.clone();
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                let name = path.last().cloned().unwrap_or_default();
                self.add(path, name, public);
            }
            syn::UseTree::Rename(rename) => {
                let mut path = before.clone();
                path.push(rename.ident.to_string());
                self.add(path, rename.rename.to_string(), public);
            }
        }
    }

    fn add(&mut self, path: Vec<String>, name: String, public: bool) {
        if let Some(path) = self.seen_from_file(path) {
            self.imports.push((path, name, public));
        }
    }

    fn note(&mut self, path: Vec<String>) {
        if path.len() > 1
            && let Some(path) = self.seen_from_file(path)
        {
            self.paths.insert(path);
        }
    }

    /// A path as the file's own level has it: inline modules are part of their file.
    fn seen_from_file(&self, mut path: Vec<String>) -> Option<Vec<String>> {
        let supers = path.iter().take_while(|name| *name == "super").count().min(self.depth);
        path.drain(..supers);
        (!path.is_empty()).then_some(path)
    }

    /// Paths in a macro's tokens.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.note(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.note(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.note(path);
    }
}

type Modules = BTreeMap<Module, Uses>;

/// A path from the crate's root on; none if it leads out of the crate.
fn from_root(modules: &Modules, from: &Module, path: &[String]) -> Option<Vec<String>> {
    let (mut base, rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (from.clone(), &path[1..]),
        "super" => {
            let supers = path.iter().take_while(|name| *name == "super").count();
            (from[..from.len().saturating_sub(supers)].to_vec(), &path[supers..])
        }
        name => {
            let mut child = from.clone();
            child.push(name.to_owned());
            modules.contains_key(&child).then(|| (from.clone(), path))?
        }
    };
    base.extend_from_slice(rest);
    Some(base)
}

/// The module in which the item at `path` is defined: `pub use` is followed.
fn defined_in(modules: &Modules, path: &[String], steps: usize) -> Option<Module> {
    let mut module = Module::new();
    for (at, name) in path.iter().enumerate() {
        module.push(name.clone());
        if modules.contains_key(&module) {
            continue;
        }
        module.pop();
        let handed_on = |(_, known, public): &&(Vec<String>, String, bool)| *public && known == name;
        let Some((to, _, _)) = modules.get(&module)?.imports.iter().find(handed_on).filter(|_| steps > 0)
        else {
            return Some(module);
        };
        let mut to = from_root(modules, &module, to)?;
        to.extend_from_slice(&path[at + 1..]);
        return defined_in(modules, &to, steps - 1);
    }
    Some(module)
}

/// Whom a module uses, and by which path.
fn used(modules: &Modules, module: &Module, uses: &Uses) -> BTreeMap<Module, String> {
    let mut used = BTreeMap::new();
    let mut add = |path: Vec<String>| {
        let to = defined_in(modules, &path, 8).filter(|to| to != module && modules.contains_key(to));
        if let Some(to) = to {
            used.entry(to).or_insert_with(|| path.join("::"));
        }
    };
    let mut known = BTreeMap::new();
    for (path, name, public) in &uses.imports {
        let Some(path) = from_root(modules, module, path) else { continue };
        // A module that is imported is used by the paths that begin with it.
        if !public && (name == "*" || !modules.contains_key(&path)) {
            add(path.clone());
        }
        known.insert(name.as_str(), path);
    }
    for path in &uses.paths {
        match (from_root(modules, module, path), known.get(path[0].as_str())) {
            (Some(path), _) => add(path),
            (None, Some(import)) => add(import.iter().chain(&path[1..]).cloned().collect()),
            (None, None) => {}
        }
    }
    used
}

fn faults_of_crate(folder: &str, modules: &Modules) -> Vec<String> {
    let edges: BTreeMap<&Module, BTreeMap<Module, String>> =
        modules.iter().map(|(module, uses)| (module, used(modules, module, uses))).collect();
    // Whom each reaches, by any way.
    let reached = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from.clone()];
        while let Some(module) = next.pop() {
            next.extend(edges[&module].keys().filter(|to| seen.insert((*to).clone())).cloned());
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        modules.keys().map(|module| (module, reached(module))).collect();
    let mut told: BTreeSet<&Module> = BTreeSet::new();
    let mut faults = Vec::new();
    for module in modules.keys().filter(|module| reach[module].contains(*module)) {
        if told.contains(module) {
            continue;
        }
        let cycle: Vec<&Module> = modules
            .keys()
            .filter(|other| reach[module].contains(*other) && reach[other].contains(module))
            .collect();
        let mut words = Vec::new();
        for from in &cycle {
            for (to, path) in edges[*from].iter().filter(|(to, _)| cycle.contains(to)) {
                words.push(format!("  {} uses {} ({path})", name(from), name(to)));
            }
        }
        faults.push(format!(
            "{folder}: {} modules use each other in a cycle:\n{}",
            cycle.len(),
            words.join("\n")
        ));
        told.extend(cycle);
    }
    faults
}

fn name(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, source)| (format!("a/src/{path}"), (*source).to_owned())).collect();
        faults(&files)
    }

    #[test]
    fn two_files_that_use_each_other_are_a_fault_however_they_say_it() {
        for (one, other) in [
            ("use crate::b::B; pub struct A;", "use crate::a::A; pub struct B;"),
            ("use super::b::B; pub struct A;", "fn f() { crate::a::g() }"),
            ("use crate::b; fn f() { b::g() }", "use crate::{a::A as Other};"),
            ("fn f() { println!(\"{}\", crate::b::G) }", "use super::a::*;"),
            ("mod inner { use super::super::b::B; }", "use crate::a::A;"),
            ("use crate::B; pub struct A;", "use crate::a::A; pub struct B;"),
        ] {
            let found = of(&[("lib.rs", "pub use b::B; mod a; mod b;"), ("a.rs", one), ("b.rs", other)]);
            assert_eq!(found.len(), 1, "{one} / {other}: {found:?}");
            assert!(found[0].contains("a uses b") && found[0].contains("b uses a"), "{found:?}");
        }
    }

    #[test]
    fn a_parent_and_its_child_are_two_files_too() {
        let found =
            of(&[("p/mod.rs", "use self::c::C; pub struct P;"), ("p/c.rs", "use super::P; pub struct C;")]);
        assert!(found.len() == 1 && found[0].contains("p uses p::c"), "{found:?}");
    }

    #[test]
    fn one_way_handing_on_and_tests_are_no_fault() {
        let files = [
            ("lib.rs", "pub mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { use super::*; }"),
            ("b.rs", "use std::fmt; pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
            ("p/mod.rs", "pub use c::C; mod c; pub struct P;"),
            ("p/c.rs", "use super::P; use crate::A; pub struct C;"),
            ("b/tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(of(&files), Vec::<String>::new());
    }
}
