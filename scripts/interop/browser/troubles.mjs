// What the page says when something is wrong: of its server, of an upload that is refused, of a title that cannot be played.
import { check, choose, figures, pageUrl, PATIENCE_MS } from './common.mjs';

// How often the page asks how its server is.
const STATUS_EVERY_MS = 2000;

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
  await page.getByText(/3 streams are playing, .* no packet left more than 12 ms late; most used: 90 % of places in the cache; 1 of 2 disks need attention/).click();
  for (const text of ['<b>film</b>', '192.0.2.1:5000 by UDP', '25.0 %', 'and 4 more, started earlier', /all 3 streams are in use [(]and 2 more[)]/, /run: millrace repair/]) {
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
  await page.getByText(/b was not added: .*not a readable media file/).waitFor();
  // One that stands still in the middle is stopped by a key, and it is said how to go on.
  await page.route(/titles.[ce]$/, () => {});
  await file.setInputFiles({ name: 'c.ts', mimeType: 'video/mp2t', buffer: Buffer.alloc(1000) });
  await page.getByRole('button', { name: 'Stop' }).focus();
  await page.keyboard.press('Enter');
  await page.getByText(/c was stopped.*within ten minutes/).waitFor();
  // One that stands still when the page is loaded again: another file can be chosen then.
  await file.setInputFiles({ name: 'e.ts', mimeType: 'video/mp2t', buffer: Buffer.alloc(1000) });
  await page.getByRole('button', { name: 'Stop' }).waitFor();
  await page.reload();
  check(await file.isEnabled(), 'after it was loaded again the page takes no file');
  await file.setInputFiles({ name: 'd.ts', mimeType: 'video/mp2t', buffer: Buffer.from('no film') });
  await page.getByText(/d was not added: .*not a readable media file/).waitFor();
  await page.close();
}

// A link to a title that is gone, and one to a title that is there.
async function checkUnknownTitle(page) {
  const told = page.getByText('There is no title “no/such” here.');
  await page.goto(pageUrl + '#no%2Fsuch');
  await told.waitFor();
  check(await page.locator('#player').isHidden(), 'a player is shown for no title');
  await choose(page).click();
  await page.locator('#player').waitFor();
  await told.waitFor({ state: 'hidden' });
  figures.push('a link to no title');
  await page.close();
}

// What cannot be played, each on a page of its own. `prepare` spoils something, `says` is what the page has to say.
export async function checkTroubles(page, newPage) {
  await page.close();
  const master = '**/index.m3u8';
  const json = (status, body) => (route) => route.fulfill({ status, contentType: 'application/json', body: JSON.stringify(body) });
  const withCodecs = (page, codecs) => page.route(master, (route) => route.fulfill({
    contentType: 'application/vnd.apple.mpegurl', body: `#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000000,CODECS="${codecs}"\nmedia.m3u8\n`,
  }));
  const withStreams = (page, ...codecs) => page.route('**/api/v1/titles', async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.titles.forEach((title) => { title.streams = codecs.map((codec) => ({ codec })); });
    await route.fulfill({ response, body: JSON.stringify(body) });
  });
  const cases = [
    ['no place free', /no place for you/, (page) => page.route(master, json(503, { error: { status: 503, message: 'no place for you' } }))],
    ['a sound that the browser lacks', /cannot decode AC-3[.]/, async (page) => {
      await withCodecs(page, 'avc1.640028,ac-3');
      await withStreams(page, 'H.264', 'AC-3', 'MP3', 'private sections');
    }],
    // What is there would play.
    ['pictures that no browser has', /cannot decode MPEG-2 video and VC-1/, (page) => withStreams(page, 'MPEG-2 video', 'VC-1', 'AAC')],
    // H.264 as such it has.
    ['a profile that the browser lacks', /cannot decode this title/, (page) => withCodecs(page, 'avc1.990028,mp4a.40.2')],
    ['a decoder that fails', /cannot decode this title [(]it broke[)]/, async (page) => {
      await page.addInitScript(() => {
        addEventListener('timeupdate', ({ target }) => {
          if (target.currentTime < 0.1) return;
          Object.defineProperty(target, 'error', { value: { message: 'it broke' }, configurable: true });
          target.dispatchEvent(new Event('error'));
        }, true);
      });
    }],
    ['neither HLS nor hls.js', /built without hls[.]js/, async (page) => {
      await page.addInitScript(() => { HTMLMediaElement.prototype.canPlayType = () => ''; });
      await page.route('**/hls.js', json(404, { error: { status: 404, message: 'none' } }));
    }],
    ['no server', /does not answer/, (page) => page.route(master, (route) => route.abort())],
    ['a name that is no text', null, (page) => page.route('**/api/v1/titles', async (route) => {
      const response = await route.fetch();
      const body = await response.json();
      body.titles[0].title = '<img src=x onerror="document.title=1">';
      await route.fulfill({ response, body: JSON.stringify(body) });
    })],
  ];
  await checkStatus(await newPage());
  await checkRefusedUpload(await newPage());
  await checkUnknownTitle(await newPage());
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
