
// --- folders ---

// A folder is written into the address as `#folder=Show/Season%201`: no title has such a name.
const FOLDER = '#folder=';
// Names of the folders that are open, the outermost first.
let opened = [];
const hashOf = (path) => (path.length ? FOLDER + path.map(encodeURIComponent).join('/') : '#');
const isBelow = (title, path) => path.every((name, depth) => title.folders[depth] === name);

// The folder in the address; null if there is none.
function folderAsked() {
  if (!location.hash.startsWith(FOLDER)) return null;
  try {
    return location.hash.slice(FOLDER.length).split('/').map(decodeURIComponent).filter(Boolean);
  } catch {
    return [];
  }
}

// Titles and folders in a folder. One that holds a single title or nothing but another folder is
// not worth a click: what is in it takes its place.
function entriesOf(path) {
  const below = titles.filter((title) => isBelow(title, path));
  const groups = new Map();
  const entries = [];
  for (const title of below) {
    const name = title.folders[path.length];
    if (name === undefined) entries.push(title);
    else if (groups.has(name)) groups.get(name).push(title);
    else groups.set(name, [title]);
  }
  if (groups.size === 1 && !entries.some((title) => !title.isLive)) {
    const [name] = groups.keys();
    return [...entries, ...entriesOf([...path, name])];
  }
  for (const [name, group] of groups) entries.push(group.length > 1 ? folderEntry([...path, name], group) : group[0]);
  return entries;
}

// A folder as one of the list.
function folderEntry(path, group) {
  const added = group.reduce((newest, title) => Math.max(newest, title.added_unix_s), 0);
  const length = group.reduce((sum, title) => sum + title.duration_s, 0);
  const first = group.reduce((least, title) => (ORDERS.name(title, least) < 0 ? title : least));
  return { name: hashOf(path), path, title: path.at(-1), folder: '', count: group.length, poster: first.poster, added_unix_s: added, duration_s: length };
}

// The way to the open folder, each step a link.
function showTrail(isSearching) {
  at('trail').hidden = isSearching || !opened.length;
  const step = (path, text) => {
    const item = element('li');
    const link = element('a', text);
    link.href = hashOf(path);
    if (path.length === opened.length) link.setAttribute('aria-current', 'page');
    item.append(link);
    return item;
  };
  at('trail').firstElementChild.replaceChildren(step([], 'All titles'), ...opened.map((name, depth) => step(opened.slice(0, depth + 1), name)));
}

// Shows the folder in the address, and all of the list if that is new. A link to a title opens the
// folder of that title.
let isFirst = true;
function openFolder(isNew) {
  const before = opened;
  const asked = folderAsked();
  const isThere = !asked || titles.some((title) => isBelow(title, asked));
  const title = titles.find((title) => title.name === chosen());
  if (asked) opened = isThere ? asked : [];
  else if (isFirst && title) opened = title.folders;
  else if (!chosen()) opened = [];
  isFirst = false;
  if (!isThere) at('unknown').textContent = 'There is no folder “' + asked.join(' / ') + '” here. It may have been removed, or you may not see its titles.';
  const isSame = hashOf(before) === hashOf(opened);
  if (!isSame && !isNew) at('search').value = '';
  if (!isSame || isNew) show();
  if (isSame || isNew || chosen()) return;
  // The tile that was clicked is gone: the focus goes to the folder that was left, or to the end
  // of the trail.
  const from = tileOf(hashOf(before.slice(0, opened.length + 1)));
  const end = opened.length ? document.querySelector('#trail [aria-current]') : at('search');
  (from || end).focus({ preventScroll: !from });
}
