'use strict';
// The list of titles, and a player for the one that was chosen. Everything from the server goes into the page as text.

const at = (id) => document.getElementById(id);
const address = (path) => new URL(path.replace(/^[/]/, ''), document.baseURI.split('#')[0]).href;

let titles = [];

function seconds(total) {
  const whole = Math.round(total);
  const two = (n) => String(n).padStart(2, '0');
  const h = Math.floor(whole / 3600);
  return (h ? h + ':' + two(Math.floor(whole / 60) % 60) : String(Math.floor(whole / 60))) + ':' + two(whole % 60);
}

function about(title) {
  const codecs = [...new Set(title.streams.map((stream) => stream.codec))].join(', ');
  const rate = (title.mean_bits_per_s / 1e6).toFixed(1) + ' Mb/s';
  return [seconds(title.duration_s), rate, codecs].filter(Boolean).join(' · ');
}

function element(kind, text) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  return made;
}

function show() {
  const words = at('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = titles.filter((title) => words.every((word) => title.name.toLowerCase().includes(word)));
  at('titles').replaceChildren(...found.map((title) => {
    const item = element('li');
    const button = element('button');
    button.type = 'button';
    button.dataset.name = title.name;
    button.append(element('strong', title.name), element('span', about(title)));
    button.addEventListener('click', () => { location.hash = encodeURIComponent(title.name); });
    item.append(button);
    return item;
  }));
  at('status').textContent = titles.length === 0 ? 'There are no titles yet.'
    : found.length === titles.length ? titles.length + (titles.length === 1 ? ' title' : ' titles')
    : found.length + ' of ' + titles.length + ' titles';
  mark();
}

function mark() {
  const name = chosen();
  for (const button of document.querySelectorAll('#titles button')) {
    button.setAttribute('aria-current', String(button.dataset.name === name));
  }
}

function chosen() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return '';
  }
}

function line(label, text) {
  const copy = element('button', 'Copy');
  copy.type = 'button';
  copy.setAttribute('aria-label', 'Copy: ' + label);
  copy.addEventListener('click', () => {
    // Browsers allow it on secure pages only: elsewhere the text is selected, ready to be copied.
    const select = () => getSelection().selectAllChildren(code);
    if (navigator.clipboard) {
      navigator.clipboard.writeText(text).then(() => { copy.textContent = 'Copied'; }, select);
    } else {
      select();
    }
  });
  const code = element('code', text);
  code.tabIndex = 0;
  const value = element('dd');
  value.append(code, copy);
  return [element('dt', label), value];
}

function play() {
  const video = at('video');
  const title = titles.find((title) => title.name === chosen());
  at('trouble').hidden = true;
  mark();
  video.removeAttribute('src');
  video.load();
  at('player').hidden = !title;
  if (!title) return;
  const [hls, file] = [address(title.hls), address(title.file)];
  const plays = video.canPlayType('application/vnd.apple.mpegurl') !== '';
  at('playing').textContent = title.name;
  at('about').textContent = about(title);
  at('unplayable').hidden = plays;
  video.hidden = !plays;
  at('lines').replaceChildren(
    ...line('HLS, for players and browsers', hls),
    ...line('FFmpeg', 'ffplay ' + hls),
    ...line('VLC', 'vlc ' + hls),
    ...line('The file', file));
  at('player').scrollIntoView({ block: 'start' });
  if (plays) {
    video.src = hls;
    video.focus();
    // Browsers may want a click first: then the controls are there.
    video.play().catch(() => {});
  } else {
    at('close').focus();
  }
}

async function explain() {
  const title = titles.find((title) => title.name === chosen());
  if (!title || !at('video').error) return;
  let why = 'The browser cannot play this title: ' + (at('video').error.message || 'its codecs may be missing');
  try {
    const answer = await fetch(address(title.hls));
    if (!answer.ok) why = (await answer.json()).error.message;
  } catch {
    why = 'The server does not answer.';
  }
  at('trouble').textContent = why;
  at('trouble').hidden = false;
}

async function load() {
  try {
    const answer = await fetch(address('api/v1/titles'));
    if (!answer.ok) throw new Error(String(answer.status));
    titles = (await answer.json()).titles;
    show();
    play();
  } catch (error) {
    at('status').textContent = 'The list of titles cannot be loaded (' + error.message + '). Is the server running?';
  }
}

at('search').addEventListener('input', show);
at('video').addEventListener('error', explain);
at('close').addEventListener('click', () => {
  const name = chosen();
  location.hash = '';
  const button = [...document.querySelectorAll('#titles button')].find((button) => button.dataset.name === name);
  (button || at('search')).focus();
});
addEventListener('hashchange', play);
addEventListener('keydown', (event) => {
  if (event.key === '/' && document.activeElement !== at('search')) {
    event.preventDefault();
    at('search').focus();
  }
});
load();
