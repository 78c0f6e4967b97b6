
// --- the list of titles ---

// Lower-case letters without accents, for searching.
const plain = (text) => text.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase();

// Adds the fields that the list needs to a title from the server.
function prepared(title) {
  const shown = title.title || title.name;
  const folders = title.folders || [];
  return { ...title, title: shown, folder: title.folder || '', folders, words: plain([shown, title.name, ...folders].join(' ')) };
}

// A live title as one of the list: it has no length, and is the newest of all.
function preparedLive({ name, message, bits_per_s, file, hls, low_latency_hls, recording }) {
  const own = 'live/' + name;
  return prepared({ id: own, name: own, title: name, isLive: true, message, recording, file, hls, inParts: low_latency_hls, streams: [],
    mean_bits_per_s: bits_per_s, duration_s: Infinity, added_unix_s: Infinity });
}

const LIVE_EVERY_MS = 5000;
let liveNames = '';

async function loadLive() {
  const answer = await fetch(address('api/v1/live'));
  if (!answer.ok) throw new Error(String(answer.status));
  const { live } = await answer.json();
  liveNames = live.map(({ name }) => name).join();
  return live.map(preparedLive);
}

// Shows the state of live titles as it changes, and loads the list again if there are other ones.
async function watchLive() {
  try {
    const known = liveNames;
    const live = document.hidden ? [] : await loadLive();
    if (liveNames !== known) await load();
    for (const { name, message, recording } of live) {
      const title = titles.find((title) => title.name === name);
      const button = tileOf(name);
      if (title) title.message = message;
      if (button) button.querySelector('.words').lastElementChild.textContent = message;
      if (playing.title && playing.title.name === name) {
        at('about').textContent = about({ ...playing.title, message });
        if (Boolean(playing.title.recording) !== Boolean(recording)) offerRecording(Object.assign(playing.title, { recording }));
      }
    }
  } catch {
    // The list stays as it is until the server answers again.
  }
  setTimeout(watchLive, LIVE_EVERY_MS);
}

const byName = new Intl.Collator(undefined, { numeric: true, sensitivity: 'base' });
const ORDERS = {
  name: (a, b) => byName.compare(a.title, b.title) || byName.compare(a.folder, b.folder) || byName.compare(a.name, b.name),
  new: (a, b) => b.added_unix_s - a.added_unix_s || ORDERS.name(a, b),
  long: (a, b) => b.duration_s - a.duration_s || ORDERS.name(a, b),
};

// The titles that match, or what is in the open folder, in order. Only those in and near the viewport have elements: there may be
// 10,000.
let found = [];
let watched = {};
const tiles = new Map();
const ROWS_BEYOND = 2;

function tile(title, share) {
  const item = element('li');
  const button = element('button');
  button.type = 'button';
  button.dataset.name = title.name;
  const part = (className, ...parts) => {
    const made = element('span');
    made.className = className;
    made.append(...parts);
    return made;
  };
  const poster = posterOf(title);
  poster.append(title.isLive ? part('length live', 'Live') : part('length', title.path ? title.count + ' titles' : seconds(title.duration_s)));
  const words = part('words', element('strong', title.title), part('soft', title.path ? 'Folder' : title.folder),
    ...(title.path ? [] : [part('soft', title.isLive ? title.message : coming(title) || format(title))]));
  item.classList.toggle('folder', Boolean(title.path));
  button.append(poster, words);
  if (share !== undefined) {
    const percent = Math.round(100 * share) + '%';
    const done = part('');
    done.style.width = percent;
    poster.append(part('watched', done));
    words.append(part('unseen', percent + ' watched'));
  }
  button.addEventListener('click', () => { location.hash = title.path ? title.name : encodeURIComponent(title.name); });
  item.append(button);
  return item;
}

const tileOf = (name) => [...document.querySelectorAll('#titles button')].find((button) => button.dataset.name === name);

function show() {
  const words = plain(at('search').value).split(/\s+/).filter(Boolean);
  const isSearching = words.length > 0;
  const matching = titles.filter((title) => (isSearching ? words.every((word) => title.words.includes(word)) : isBelow(title, opened)));
  const order = ORDERS[at('sort').value];
  found = (isSearching ? matching : entriesOf(opened)).sort((a, b) => Boolean(b.path) - Boolean(a.path) || order(a, b));
  at('status').textContent = titles.length === 0 ? 'There are no titles yet.'
    : matching.length === titles.length ? titles.length + (titles.length === 1 ? ' title' : ' titles')
    : matching.length + ' of ' + titles.length + ' titles';
  showTrail(isSearching);
  tiles.clear();
  at('titles').replaceChildren();
  // The name of a folder helps only where there are several.
  const isFlat = (shown) => !shown.some((entry) => entry.path) && new Set(shown.map((title) => title.folder)).size < 2;
  at('titles').classList.toggle('flat', isFlat(found));
  at('resumed').classList.toggle('flat', isFlat(titles));
  watched = marks();
  showResumed(isSearching || opened.length > 0);
  showWindow();
}

// Creates elements for the titles in the viewport; empty space stands for the others.
function showWindow() {
  const list = at('titles');
  if (!found.length) {
    list.replaceChildren();
    list.style.paddingBlock = '0';
    return;
  }
  const style = getComputedStyle(list);
  const columns = style.gridTemplateColumns.split(' ').length;
  if (!list.firstElementChild) list.append(tileAt(0));
  const row = list.firstElementChild.getBoundingClientRect().height + parseFloat(style.rowGap);
  const rows = Math.ceil(found.length / columns);
  const top = list.getBoundingClientRect().top;
  const clamp = (n) => Math.max(0, Math.min(rows, n));
  const first = clamp(Math.min(rows - 1, Math.floor(-top / row) - ROWS_BEYOND));
  const last = clamp(Math.ceil((innerHeight - top) / row) + ROWS_BEYOND);
  const wanted = [];
  for (let n = first * columns; n < Math.min(found.length, Math.max(last, first + 1) * columns); n++) wanted.push(tileAt(n));
  const kept = new Set(wanted);
  // Elements that stay are not moved: one of them may have the focus.
  [...list.children].filter((item) => !kept.has(item)).forEach((item) => item.remove());
  wanted.forEach((item, n) => { if (list.children[n] !== item) list.insertBefore(item, list.children[n] || null); });
  for (const [name, item] of tiles) if (!kept.has(item)) tiles.delete(name);
  list.style.paddingTop = first * row + 'px';
  list.style.paddingBottom = Math.max(0, rows - Math.max(last, first + 1)) * row + 'px';
  mark();
}

function tileAt(n) {
  const title = found[n];
  if (!tiles.has(title.name)) {
    const item = tile(title, shareOf(title));
    item.setAttribute('aria-setsize', String(found.length));
    item.setAttribute('aria-posinset', String(n + 1));
    tiles.set(title.name, item);
  }
  return tiles.get(title.name);
}

let isDrawn = true;
function soon() {
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(() => {
    isDrawn = true;
    showWindow();
  });
}

at('search').addEventListener('input', show);
at('sort').addEventListener('change', show);
addEventListener('scroll', soon, { passive: true });
addEventListener('resize', soon);

// --- where viewers stopped ---

// Stored in this browser only: position and date, by the id of the title.
const MARKS = 'millrace-watched';
const MARKS_KEPT = 50;
const RESUMED_SHOWN = 6;
// A shorter position is not worth resuming, and near the end only the credits remain.
const LEAST_S = 30;
const ENDS_AT = 0.95;

function marks() {
  try {
    return JSON.parse(localStorage.getItem(MARKS)) || {};
  } catch {
    return {};
  }
}

function saveMark() {
  const { title } = playing;
  const { currentTime, ended } = at('video');
  if (!title || title.isLive || currentTime < LEAST_S) return;
  const all = marks();
  delete all[title.id];
  if (!ended && currentTime < ENDS_AT * title.duration_s) all[title.id] = { at: currentTime, when: Date.now() };
  const newest = Object.entries(all).sort(([, a], [, b]) => b.when - a.when).slice(0, MARKS_KEPT);
  try {
    localStorage.setItem(MARKS, JSON.stringify(Object.fromEntries(newest)));
  } catch {
    // Without local storage no position is remembered.
  }
}

// The share of a title that was watched; undefined for one that was not begun.
const shareOf = (title) => (watched[title.id] ? watched[title.id].at / title.duration_s : undefined);

function showResumed(isSearching) {
  const all = watched;
  const begun = titles.filter((title) => all[title.id]).sort((a, b) => all[b.id].when - all[a.id].when).slice(0, RESUMED_SHOWN);
  at('resume').hidden = isSearching || !begun.length;
  at('resumed').replaceChildren(...begun.map((title) => {
    const item = tile(title, shareOf(title));
    item.firstElementChild.addEventListener('click', () => { goOnAt = all[title.id].at; });
    return item;
  }));
}

// Start position of the title that is chosen next.
let goOnAt = 0;

function offerMark(title) {
  const mark = marks()[title.id];
  const from = goOnAt;
  goOnAt = 0;
  if (from) at('video').addEventListener('loadedmetadata', () => { at('video').currentTime = from; }, { once: true });
  at('from-mark').hidden = !mark || from > 0;
  if (mark) {
    at('from-mark').textContent = 'Continue at ' + seconds(mark.at);
    at('from-mark').onclick = () => {
      at('video').currentTime = mark.at;
      at('from-mark').hidden = true;
    };
  }
}

let markedAt = 0;
at('video').addEventListener('timeupdate', () => {
  if (Math.abs(at('video').currentTime - markedAt) < 5) return;
  markedAt = at('video').currentTime;
  saveMark();
});
for (const event of ['pause', 'ended']) at('video').addEventListener(event, saveMark);
addEventListener('pagehide', saveMark);

// --- rename, replace and delete ---

function offerManagement(title) {
  at('manage').hidden = !mayManage || Boolean(title.isLive);
  at('replace').hidden = !mayUpload;
  at('new-title').value = title.title;
  at('managed').textContent = '';
}

// The error message of a change, for display; empty if it succeeded.
async function outcome(answer) {
  if (answer.ok) return '';
  try {
    return (await answer.json()).error.message;
  } catch {
    return 'the server answers with status ' + answer.status;
  }
}

async function change(options) {
  const { title } = playing;
  try {
    const answer = await fetch(address('api/v1/titles/' + encodeURIComponent(title.name)), options);
    const why = await outcome(answer);
    at('managed').textContent = why && 'Not changed: ' + why + '.';
    return !why;
  } catch {
    at('managed').textContent = 'The server does not answer.';
    return false;
  }
}

at('manage').addEventListener('submit', async (event) => {
  event.preventDefault();
  const title = at('new-title').value.trim();
  const headers = { 'Content-Type': 'application/json' };
  if (!await change({ method: 'PATCH', headers, body: JSON.stringify({ title }) })) return;
  at('managed').textContent = 'Renamed.';
  at('playing').textContent = title;
  load();
});
// A file has to be chosen, and then to be confirmed.
at('replace').addEventListener('click', () => {
  at('of-replacement').textContent = 'Replace “' + playing.title.title + '”?';
  at('new-film').value = '';
  at('replace-now').disabled = true;
  at('replacement').showModal();
});
at('new-film').addEventListener('change', () => { at('replace-now').disabled = !at('new-film').files.length; });
at('keep-film').addEventListener('click', () => at('replacement').close());
at('replace-now').addEventListener('click', () => {
  const { title } = playing;
  at('replacement').close();
  uploadAll([...at('new-film').files], title);
  at('uploads').scrollIntoView({ block: 'nearest' });
});
// A dialog asks first. Its first button, which has the focus, keeps the title.
at('remove').addEventListener('click', () => {
  at('of-removal').textContent = 'Delete “' + playing.title.title + '”?';
  at('removal').showModal();
});
at('keep').addEventListener('click', () => at('removal').close());
at('remove-now').addEventListener('click', async (event) => {
  // The second click of a double click on "Delete…" may land here.
  if (event.detail > 1) return;
  at('removal').close();
  if (!await change({ method: 'DELETE' })) return;
  close();
  load();
});
