// Drives Chromium over the page of a running server, as people do, and compares the pictures that it shows with the numbers that are drawn into them.
//
//   node check.mjs PLAYWRIGHT CHROMIUM PAGE TITLE PART [PICTURES]
//
// PLAYWRIGHT: the folder of playwright-core. TITLE: a title with renditions whose pictures carry their number (NUMBER_BITS blocks, see below).
// PART: `page` (search, click, seek, quality, keys, a narrow window), `troubles` (what the page says when a title cannot be played) or `levels`
// (hls.js plays every rendition) or `sounds` (of a title with two sounds, each can be chosen) or
// `subtitles` (of a title whose subtitles say when they are to be seen). PICTURES: a folder for two screenshots. Prints figures, one line each; the last line of an error says what was wrong.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [playwright, chromium, pageUrl, title, part, pictures] = process.argv.slice(2);
const { chromium: driver } = await import(join(playwright, 'index.mjs'));

const FRAMES_PER_SECOND = 25;
// The number of a picture, its lowest bit on the left: as many blocks side by side as the picture is wide, white for 1, in its lowest sixth.
const NUMBER_BITS = 10;
// For whatever has to happen: a bound against hanging, not a measure.
const PATIENCE_MS = 20_000;
const SEGMENT_AT_MOST_S = 9;
// How often the page asks how its server is.
const STATUS_EVERY_MS = 2000;
const NARROW = { width: 360, height: 740 };
const WIDE = { width: 1024, height: 768 };
const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
  '--autoplay-policy=no-user-gesture-required',
];

function check(is, what) {
  if (!is) throw new Error(what);
}

const figures = [];

// In the page: reads the number of the picture that is shown, and waits for pictures.
function helpers(bits) {
  const canvas = document.createElement('canvas');
  globalThis.numberShown = () => {
    const video = document.querySelector('video');
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    const context = canvas.getContext('2d', { willReadFrequently: true });
    context.drawImage(video, 0, 0);
    let number = 0;
    for (let bit = 0; bit < bits; bit++) {
      const x = Math.floor((bit + 0.5) * canvas.width / bits);
      const { data } = context.getImageData(x - 2, Math.floor(canvas.height * 11 / 12) - 2, 5, 5);
      const light = data.reduce((sum, value, at) => sum + (at % 4 === 1 ? value : 0), 0) / 25;
      if (light > 128) number |= 1 << bit;
    }
    return number;
  };
  // Pictures as they are shown, until one is at `end` seconds or the film has ended: their numbers, times and heights.
  globalThis.picturesTo = (end, patience) => new Promise((resolve, reject) => {
    const video = document.querySelector('video');
    const shown = [];
    const over = () => resolve(shown);
    const next = (_, { mediaTime, height }) => {
      shown.push({ number: globalThis.numberShown(), mediaTime, height });
      if (mediaTime >= end) over();
      else video.requestVideoFrameCallback(next);
    };
    video.requestVideoFrameCallback(next);
    video.addEventListener('ended', over, { once: true });
    const state = () => `${shown.length} pictures; at ${video.currentTime} s, paused ${video.paused}, ready ${video.readyState}`;
    setTimeout(() => reject(new Error(`no picture at ${end} s: ${state()}`)), patience);
  });
}

// Pictures must be those of their times. One that is drawn may be followed by the next one already.
function checkNumbers(shown, what) {
  check(shown.length > 0, `${what}: no picture was shown`);
  const offset = ({ number, mediaTime }) => number - Math.round(mediaTime * FRAMES_PER_SECOND);
  const wrong = shown.filter((picture) => Math.abs(offset(picture)) > 2);
  check(wrong.length === 0, `${what}: ${wrong.length} of ${shown.length} pictures are not those of their time, the first ${JSON.stringify(wrong[0])}`);
}

const picturesTo = (page, end) =>
  page.evaluate(([end, patience]) => globalThis.picturesTo(end, patience), [end, 2 * PATIENCE_MS]);
const video = (page, what) => page.evaluate((what) => document.querySelector('video')[what], what);
const hasReached = (page, time) =>
  page.waitForFunction((time) => document.querySelector('video').currentTime >= time, time, { timeout: PATIENCE_MS });

// Waits until a seek of a film that stands still is over, and compares the picture. The sound may begin up to four pictures before the first.
async function checkSought(page, to, what) {
  const at = await video(page, 'currentTime');
  check(Math.abs(at - to) < 0.1, `${what}: the player is at ${at} s, not at ${to} s`);
  const isThere = (wanted) => {
    const { seeking, readyState } = document.querySelector('video');
    return !seeking && readyState >= 2 && Math.abs(globalThis.numberShown() - wanted) <= 4;
  };
  await page.waitForFunction(isThere, Math.round(to * FRAMES_PER_SECOND)).catch(async () => {
    throw new Error(`${what}: at ${to} s picture ${await page.evaluate(() => globalThis.numberShown())} is shown`);
  });
  return page.evaluate(() => globalThis.numberShown());
}

const choose = (page) => page.locator('#titles button', { has: page.getByText(title, { exact: true }) });

async function search(page) {
  await page.getByLabel('Search').fill('no such title');
  await page.getByText(/^0 of \d+ titles$/).waitFor();
  check(await page.locator('#titles button').count() === 0, 'titles are listed that were not searched for');
  await page.getByLabel('Search').fill(title.slice(0, -1).toUpperCase());
  await choose(page).waitFor();
}

async function playByClick(page) {
  await choose(page).click();
  await hasReached(page, 0.2);
  const from = await video(page, 'currentTime');
  const shown = await picturesTo(page, from + 2.5);
  checkNumbers(shown, 'playing');
  check(!(await video(page, 'paused')), 'it is paused');
  figures.push(`${shown.length} pictures in 2.5 s, all at their times`);
}

async function seek(page) {
  await page.locator('video').focus();
  const to = (time) => page.evaluate((time) => { document.querySelector('video').currentTime = time; }, time);
  await page.evaluate(() => document.querySelector('video').pause());
  await to(3);
  const numbers = [await checkSought(page, 3, 'to 3 s')];
  await page.keyboard.press('l');
  numbers.push(await checkSought(page, 13, 'on by a key'));
  await page.keyboard.press('j');
  numbers.push(await checkSought(page, 3, 'back by a key'));
  await to(7.3);
  numbers.push(await checkSought(page, 7.3, 'to 7.3 s'));
  await page.evaluate(() => document.querySelector('video').play());
  figures.push(`sought pictures ${numbers.join(', ')}`);
}

// The bar shows the small picture of where it is pointed at, and seeks.
async function seekByBar(page) {
  await page.waitForFunction((title) => fetch('api/v1/titles/' + title).then((answer) => answer.json()).then(({ pictures }) => pictures === 'made'), title);
  await page.reload();
  await search(page);
  const bar = page.getByLabel('Seek');
  await bar.waitFor();
  const shown = page.locator('#thumb');
  const isLit = () => page.evaluate(() => {
    const canvas = document.querySelector('#thumb');
    return !canvas.hidden && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value, at) => at % 4 < 3 && value > 16);
  });
  for (let round = 0; !(await isLit()); round++) {
    check(round < 100, 'no small picture is shown where the bar is pointed at');
    // It moves as long as the page grows.
    const box = await bar.boundingBox();
    await bar.hover({ position: { x: box.width * (0.4 + round % 2 / 100), y: box.height / 2 } });
    await page.waitForTimeout(100);
  }
  await page.mouse.move(0, 0);
  await shown.waitFor({ state: 'hidden' });
  await page.evaluate(() => document.querySelector('video').pause());
  await bar.focus();
  const from = Number(await bar.inputValue());
  await page.keyboard.press('ArrowRight');
  await page.waitForFunction((to) => Math.abs(document.querySelector('video').currentTime - to) < 1, from + 5);
  check(await shown.isVisible(), 'keys on the bar show no small picture');
  check(await page.locator('#titles img').count() > 0, 'no poster is shown');
  await page.evaluate(() => document.querySelector('video').play());
  figures.push('small pictures while seeking');
}

// Each rendition: from here on, and back to the one that the player chooses itself.
async function changeQuality(page) {
  const options = await page.locator('#quality option').evaluateAll((all) => all.map(({ value, text }) => ({ value, text })));
  check(options.length > 2 && options[0].text.startsWith('Automatic'), `quality can be chosen among ${JSON.stringify(options)}`);
  for (const { value, text } of options.slice(1).reverse()) {
    const height = Number.parseInt(text, 10);
    await page.evaluate(() => { document.querySelector('video').currentTime = 0; });
    await page.getByLabel('Quality').selectOption(value);
    await page.waitForFunction((height) => document.querySelector('video').videoHeight === height, height, { timeout: PATIENCE_MS });
    const from = await video(page, 'currentTime');
    const shown = await picturesTo(page, from + 1);
    checkNumbers(shown, text);
    check(shown.every((picture) => picture.height === height), `${text}: pictures of ${shown.map((picture) => picture.height)} lines`);
  }
  await page.getByLabel('Quality').selectOption('-1');
  await page.getByLabel('Speed').selectOption('2');
  check(await video(page, 'playbackRate') === 2, 'the speed does not change');
  figures.push(`${options.length - 1} qualities`);
}

const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.dataset.name || document.activeElement.tagName);

// Keys alone: the search, the title, the picture, and out again.
async function useKeys(page) {
  await page.keyboard.press('Escape');
  await page.locator('#player').waitFor({ state: 'hidden' });
  check(await focused(page) === title, `after closing, ${await focused(page)} has the focus`);
  await page.keyboard.press('/');
  check(await focused(page) === 'search', 'the key / does not go to the search');
  await page.keyboard.press('Tab');
  check(await focused(page) === title, `behind the search ${await focused(page)} has the focus`);
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  check(outline === 'solid', 'the focus cannot be seen');
  await page.keyboard.press('Enter');
  await hasReached(page, 0.5);
  check(await focused(page) === 'video', `of a title that plays ${await focused(page)} has the focus`);
  check(await video(page, 'playbackRate') === 2, 'the speed was forgotten');
  figures.push('keys alone');
}

// Light and dark, wide and narrow: nothing is cut off, and text can be read.
async function look(page) {
  await page.locator('video').evaluate((video) => { video.pause(); });
  for (const [size, scheme, name] of [[WIDE, 'light', 'page'], [NARROW, 'dark', 'page-narrow']]) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme: scheme });
    const found = await page.evaluate(() => {
      const { color, backgroundColor } = getComputedStyle(document.body);
      const light = (text) => {
        const linear = text.match(/\d+/g).slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
      };
      const [text, back] = [light(color), light(backgroundColor)];
      const contrast = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
      return { isDark: back < text, contrast, overhang: document.scrollingElement.scrollWidth - innerWidth };
    });
    check(await page.locator('#server summary').isVisible(), 'the page does not show how its server is');
    check(found.overhang <= 0, `a window of ${size.width} scrolls sideways by ${found.overhang}`);
    check(found.isDark === (scheme === 'dark') && found.contrast >= 7, `${scheme}: ${JSON.stringify(found)}`);
    if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: size === NARROW });
  }
  figures.push('narrow and dark');
}

// The beginning of the title as a film of its own, chosen as a file.
async function uploadFile(page) {
  await page.getByLabel('Search').fill('');
  const begin = await page.request.get(new URL(`titles/${title}.ts`, pageUrl).href, { headers: { Range: 'bytes=0-1999999' } });
  const file = { name: 'Up Ladén.ts', mimeType: 'video/mp2t', buffer: await begin.body() };
  await page.locator('#file').setInputFiles(file);
  await page.getByText('up-laden is there.').waitFor();
  await page.locator('#titles button', { has: page.getByText('up-laden', { exact: true }) }).waitFor();
  check(await focused(page) === 'file', `after an upload ${await focused(page)} has the focus`);
  figures.push('a film uploaded');
}

async function checkPage(page) {
  await page.goto(pageUrl);
  await choose(page).waitFor();
  const paint = await page.evaluate(() => performance.getEntriesByName('first-paint')[0]?.startTime);
  figures.push(`first paint after ${Math.round(paint)} ms`);
  await search(page);
  await playByClick(page);
  await seek(page);
  await seekByBar(page);
  await changeQuality(page);
  await useKeys(page);
  await look(page);
  await uploadFile(page);
}

// Every rendition by hls.js to the end: pictures at their times, none of them damaged. The player goes over to it with the segment behind the one that it shows.
async function checkLevels(page) {
  await page.goto(pageUrl);
  await choose(page).click();
  const options = page.locator('#quality option');
  await options.nth(1).waitFor({ state: 'attached' });
  const values = (await options.evaluateAll((all) => all.map((option) => option.value))).slice(1);
  for (const value of values) {
    await page.evaluate(() => {
      document.querySelector('video').currentTime = 0;
      document.querySelector('video').play();
    });
    await page.waitForFunction(() => !document.querySelector('video').seeking && document.querySelector('video').currentTime > 0.1);
    await page.getByLabel('Quality').selectOption(value);
    const height = Number.parseInt(await page.locator(`#quality option[value="${value}"]`).textContent(), 10);
    const shown = await picturesTo(page, Infinity);
    checkNumbers(shown, `${height}p`);
    const from = shown.findIndex((picture) => picture.height === height);
    const rest = shown.slice(from);
    check(from >= 0 && rest[0].mediaTime < SEGMENT_AT_MOST_S, `${height}p is shown from ${JSON.stringify(rest[0])}`);
    check(rest.every((picture) => picture.height === height), `${height}p: pictures of another rendition`);
    check(rest.at(-1).mediaTime > rest[0].mediaTime + 5, `${height}p ends after ${JSON.stringify(rest.at(-1))}`);
    const quality = await page.evaluate(() => {
      const { corruptedVideoFrames, totalVideoFrames } = document.querySelector('video').getVideoPlaybackQuality();
      return { corruptedVideoFrames, totalVideoFrames };
    });
    check(quality.corruptedVideoFrames === 0, `${quality.corruptedVideoFrames} of ${quality.totalVideoFrames} pictures are damaged`);
    figures.push(`${height}p: ${rest.length} pictures at their times to ${rest.at(-1).mediaTime} s, from ${rest[0].mediaTime} s`);
  }
}

// A title with several sounds plays with these apart from its pictures: the one that is chosen is fetched, and playing goes on with it.
async function checkSounds(page) {
  const fetched = [];
  page.on('response', (response) => {
    const track = new URL(response.url()).pathname.match(/[/]cmaf[/][^/]+[/](\d+)[/]\d+[.]m4s$/);
    if (track && response.ok()) fetched.push(track[1]);
  });
  await page.goto(pageUrl);
  await choose(page).click();
  await hasReached(page, 0.5);
  const options = page.locator('#sound option');
  await options.nth(1).waitFor({ state: 'attached' });
  const names = await options.allTextContents();
  check(names.join() === 'eng,deu', `sounds can be chosen among ${names}`);
  const first = [...new Set(fetched)];
  check(first.length === 2, `before the choice tracks ${first} were fetched: not one of pictures and one of sound`);
  await page.locator('#sound').selectOption({ label: 'deu' });
  const isOther = async () => fetched.some((track) => !first.includes(track));
  for (const end = Date.now() + PATIENCE_MS; !(await isOther());) {
    check(Date.now() < end, 'the other sound was not fetched');
    await page.waitForTimeout(50);
  }
  await hasReached(page, await video(page, 'currentTime') + 1);
  check(await page.locator('#sound').evaluate((select) => select.selectedOptions[0].text) === 'deu', 'the choice was forgotten');
  figures.push(`sounds ${names.join(', ')}; tracks ${[...new Set(fetched)].join(', ')}`);
}

// Subtitles are shown once they are chosen, each when its text says; and not any more once none are.
async function checkSubtitles(page) {
  await page.goto(pageUrl);
  await choose(page).click();
  await hasReached(page, 0.5);
  const options = page.locator('#subtitles option');
  await options.nth(1).waitFor({ state: 'attached' });
  const names = await options.allTextContents();
  check(names.join() === 'None,deu', `subtitles can be chosen among ${names}`);
  const showing = () => page.evaluate(() => [...document.querySelector('video').textTracks].filter(({ mode }) => mode === 'showing').length);
  check(await showing() === 0, 'subtitles are shown that nobody asked for');
  await page.locator('#subtitles').selectOption({ label: 'deu' });
  // What is shown, with the time, until the film has ended.
  const seen = await page.evaluate((patience) => new Promise((resolve, reject) => {
    const video = document.querySelector('video');
    const seen = [];
    const look = () => {
      for (const { mode, activeCues } of video.textTracks) {
        if (mode === 'showing') [...activeCues].forEach((cue) => seen.push({ at: video.currentTime, text: cue.text, from: cue.startTime, to: cue.endTime }));
      }
      if (!video.ended) video.requestVideoFrameCallback(look);
    };
    look();
    video.addEventListener('ended', () => resolve(seen), { once: true });
    setTimeout(() => reject(new Error(`the film has not ended at ${video.currentTime} s`)), patience);
  }), 2 * PATIENCE_MS);
  const texts = new Map(seen.map((cue) => [cue.text, cue]));
  check(texts.size >= 3, `shown: ${JSON.stringify([...texts.keys()])}`);
  // Where a film was joined its time is off by some pictures.
  const near = (a, b) => Math.abs(a - b) < 0.25;
  for (const { at, text, from, to } of seen) {
    const said = text.match(/^from ([\d.]+) to ([\d.]+) s$/);
    check(said && near(from, Number(said[1])) && near(to, Number(said[2])), `"${text}" is a cue from ${from} to ${to} s`);
    check(at > from - 0.25 && at < to + 0.25, `"${text}" is shown at ${at} s`);
  }
  const last = Math.max(...seen.map(({ from }) => from));
  check(last > await video(page, 'duration') - 5, `the last one is of ${last} s`);
  await page.locator('#subtitles').selectOption({ label: 'None' });
  check(await showing() === 0, 'subtitles are shown that were switched off');
  figures.push(`${texts.size} subtitles at their times, the last at ${last.toFixed(2)} s`);
}

// What the page shows of a server with trouble, as text; and that it does not ask again once it is told that this is not for it.
async function checkStatus(page) {
  const session = { session: 's', title: '<b>film</b>', peer: '192.0.2.1:5000', transport: 'UDP', is_playing: true, position_s: 61, age_s: 70, bits_per_s: 8e6, lost: 0.25 };
  const status = {
    streams: 3, sent_bytes: 0, packets: 0, late_packets: 0, late_max_s: 0.012, sessions: [session], sessions_left_out: 4,
    room: [{ what: 'streams', used: 3, of: 100 }, { what: 'places in the cache', used: 9, of: 10 }],
    refusals: [{ at_unix_s: 0, what: 'film for 192.0.2.9:1: all 3 streams are in use', more: 2 }],
    members: [{ member: 0, place: '/disk0', trouble: null }, { member: 1, place: '/disk1', trouble: 'member 1 is gone; run: millrace repair' }],
  };
  let asked = 0;
  await page.route('**/api/v1/status', (route) => {
    asked += 1;
    const refused = { status: 403, body: '{}' };
    return route.fulfill(asked > 1 ? refused : { contentType: 'application/json', body: JSON.stringify(status) });
  });
  await page.clock.install();
  await page.goto(pageUrl);
  await page.getByText(/3 streams .* fullest: 90 % of the places in the cache .* at most 12 ms .* 1 of 2 disks with trouble/).click();
  for (const text of ['<b>film</b>', '192.0.2.1:5000 by UDP', '25.0 %', 'and 4 who came before', /all 3 streams are in use [(]and 2 more[)]/, /run: millrace repair/]) {
    await page.locator('#server').getByText(text).waitFor();
  }
  const refused = page.waitForResponse((response) => response.status() === 403);
  await page.clock.runFor(STATUS_EVERY_MS);
  await (await refused).finished();
  for (let round = 0; round < 4; round++) {
    // A request of its own: what the page had asked before is answered when this one is.
    await page.evaluate(() => fetch('healthz').then((answer) => answer.text()));
    await page.clock.runFor(STATUS_EVERY_MS);
  }
  check(asked === 2, `the page asked ${asked} times for what it was refused`);
  figures.push('a server with trouble shown');
  await page.close();
}

async function checkRefusedUpload(page) {
  await page.goto(pageUrl);
  const file = page.locator('#file');
  await file.setInputFiles({ name: 'b.ts', mimeType: 'video/mp2t', buffer: Buffer.from('no film') });
  await page.getByText(/b was not taken: .*not an MPEG transport stream/).waitFor();
  // One that stands still in the middle is stopped by a key, and it is said how to go on.
  await page.route('**/titles/c', () => {});
  await file.setInputFiles({ name: 'c.ts', mimeType: 'video/mp2t', buffer: Buffer.alloc(1000) });
  await page.getByRole('button', { name: 'Stop' }).focus();
  await page.keyboard.press('Enter');
  await page.getByText(/c was stopped.*within ten minutes/).waitFor();
  await page.close();
}

// What cannot be played, each on a page of its own. `prepare` spoils something, `says` is what the page has to say.
async function checkTroubles(page, newPage) {
  await page.close();
  const master = '**/index.m3u8';
  const json = (status, body) => (route) => route.fulfill({ status, contentType: 'application/json', body: JSON.stringify(body) });
  const cases = [
    ['no place free', /no place for you/, (page) => page.route(master, json(503, { error: { status: 503, message: 'no place for you' } }))],
    ['a codec that the browser lacks', /cannot decode H[.]265 and AC-3/, async (page) => {
      const list = (codecs) => `#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000000,CODECS="${codecs}"\nmedia.m3u8\n`;
      await page.route(master, (route) => route.fulfill({ contentType: 'application/vnd.apple.mpegurl', body: list('hvc1.1.6.L93.B0,ac-3') }));
      await page.route('**/api/v1/titles', async (route) => {
        const response = await route.fetch();
        const body = await response.json();
        body.titles.forEach((title) => { title.streams = [{ codec: 'H.265' }, { codec: 'AC-3' }, { codec: 'private sections' }]; });
        await route.fulfill({ response, body: JSON.stringify(body) });
      });
    }],
    ['neither HLS nor hls.js', /lacks hls[.]js/, async (page) => {
      await page.addInitScript(() => { HTMLMediaElement.prototype.canPlayType = () => ''; });
      await page.route('**/hls.js', json(404, { error: { status: 404, message: 'none' } }));
    }],
    ['no server', /does not answer/, (page) => page.route(master, (route) => route.abort())],
    ['a name that is no text', null, (page) => page.route('**/api/v1/titles', async (route) => {
      const response = await route.fetch();
      const body = await response.json();
      body.titles[0].name = '<img src=x onerror="document.title=1">';
      await route.fulfill({ response, body: JSON.stringify(body) });
    })],
  ];
  await checkStatus(await newPage());
  await checkRefusedUpload(await newPage());
  for (const [name, says, prepare] of cases) {
    const page = await newPage();
    await prepare(page);
    await page.goto(pageUrl);
    if (says) {
      await choose(page).click();
      const told = page.getByRole('alert').filter({ hasText: says });
      await told.waitFor({ timeout: PATIENCE_MS }).catch(async () => {
        throw new Error(`${name}: the page says "${await page.locator('#trouble').textContent()}"`);
      });
    } else {
      await page.locator('#titles strong').filter({ hasText: '<img src=x' }).waitFor();
      check(await page.locator('img[src="x"]').count() === 0 && await page.title() === 'Millrace', name);
    }
    await page.close();
  }
  figures.push(`${cases.length} troubles told`);
}

const profile = await mkdtemp(join(tmpdir(), 'millrace-chromium-'));
const context = await driver.launchPersistentContext(profile, { executablePath: chromium, headless: true, args: FLAGS, viewport: WIDE });
const complaints = [];
try {
  const library = await context.request.get(new URL('hls.js', pageUrl).href);
  check(library.ok(), 'this build of the server lacks hls.js: scripts/npm.sh page, then build again');
  context.setDefaultTimeout(PATIENCE_MS);
  await context.addInitScript(helpers, NUMBER_BITS);
  context.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(pageUrl).origin && protocol !== 'blob:') complaints.push(`the page asked for ${request.url()}`);
  });
  const newPage = async (isWatched) => {
    const page = await context.newPage();
    if (isWatched) {
      page.on('console', (message) => { if (message.type() === 'error') complaints.push(`console: ${message.text()}`); });
      page.on('pageerror', (error) => complaints.push(`error in the page: ${error}`));
    }
    return page;
  };
  const parts = { page: checkPage, levels: checkLevels, sounds: checkSounds, subtitles: checkSubtitles, troubles: checkTroubles };
  await parts[part](await newPage(true), newPage);
  check(complaints.length === 0, complaints.join('; '));
  console.log(figures.join('\n'));
} catch (error) {
  console.error([...figures, ...complaints, `${part}: ${error.message.split('\n')[0]}`].join('\n'));
  process.exitCode = 1;
} finally {
  await context.close();
  await rm(profile, { recursive: true, force: true });
}
