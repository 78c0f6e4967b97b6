//! Power cuts while a title of another store is taken over: it is there whole, or not at all, and it is there once it was acknowledged.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::crash_support::{Library, assert_sound, each_state, scratch};
use crate::sim::Sim;
use millrace_store::format::manifest::DATA_FILE;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{ImportStep, ImportedTitle, TitleExport, TitleImport, Volume};
use millrace_testkit::titles::Film;

/// Takes a title over, as from an object store.
fn import(export: &mut TitleExport, to: &Volume) {
    let mut import = TitleImport::begin(to, export.manifest().clone()).unwrap().unwrap();
    for entry in export.manifest().files.iter().filter(|entry| entry.name != DATA_FILE) {
        let mut bytes = Vec::new();
        export.open_file(entry).unwrap().read_to_end(&mut bytes).unwrap();
        let mut file = import.begin_file(&entry.name).unwrap();
        file.append(&bytes).unwrap();
        assert!(file.finish().unwrap());
    }
    let mut media = vec![0; export.manifest().title.bytes as usize];
    export.read_media(0, &mut media).unwrap();
    assert_eq!(import.write_media(&media).unwrap(), ImportStep::Taken);
    ImportedTitle::publish(vec![import.complete().unwrap()]).unwrap();
}

#[test]
fn power_cut_while_title_is_taken_over_leaves_all_or_nothing_of_it() {
    let from = scratch();
    let source = Volume::open_or_create(from.path()).unwrap();
    let library = Library::new([("film", Film::new(60, 1))]);
    let id = library.add(&source, "film", &[1316]).id;
    for members in [1, 3] {
        let dir = scratch();
        let roots: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let parity = usize::from(members > 1);
        drop(Volume::create(&roots, Geometry::choose(members, parity, 0).unwrap()).unwrap());
        let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<&Path>>()).unwrap();
        let volume = Volume::open_members_on(&roots, sim.disk()).unwrap();
        import(&mut TitleExport::open(&source, id).unwrap(), &volume);
        sim.mark("added film");
        drop(volume);
        // Those that are rebuilt name these as their places.
        roots.iter().for_each(|root| std::fs::rename(root, root.with_extension("done")).unwrap());
        let mut seen = [0; 2];
        each_state(&sim.recording(), members, 2, |left| {
            let volume = Volume::open_members(left.roots).unwrap_or_else(|e| panic!("{}: {e}", left.what));
            library.verify(&volume, &left.marks, &left.what);
            seen[volume.titles().unwrap().len()] += 1;
            drop(volume);
            left.roots.iter().for_each(|root| assert_sound(root, &left.what));
        });
        assert!(seen.iter().all(|count| *count > 0), "{members} members: {seen:?}");
    }
}
