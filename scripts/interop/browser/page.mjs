// What people do on the page: search, click, seek, choose chapters, change the quality, use keys alone, look at it in a narrow window, upload a film, delete it.
import { join } from 'node:path';
import { checkAccess, tellAccess } from './axe.mjs';
import { browser, check, checkNumbers, checkSought, choose, figures, hasReached, pageUrl, PATIENCE_MS, pictures, picturesTo, title, video } from './common.mjs';

// Firefox takes no such command, and is dark from its start.
const CAN_CHANGE_COLOURS = browser === 'chromium';
// The names that the server gives to what is uploaded here.
const UPLOADED = [`up-laden-${browser}`, `other-${browser}`];
const NARROW = { width: 360, height: 740 };
export const WIDE = { width: 1024, height: 768 };

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
  for (const isMuted of [true, false]) {
    await page.keyboard.press('m');
    check(await video(page, 'muted') === isMuted, `the key M leaves the sound ${isMuted ? 'on' : 'off'}`);
  }
  await page.keyboard.press('Space');
  await page.waitForFunction(() => !document.querySelector('video').paused);
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

// Each chapter can be chosen, and the choice follows the film.
async function chooseChapter(page) {
  const choice = page.getByLabel('Chapter');
  await choice.waitFor();
  const names = await choice.locator('option').allTextContents();
  check(names.join() === '0:00 Opening,0:05 A second,0:11 The end', `chapters ${names}`);
  check(await page.locator('#chapter-marks option').count() === 3, 'the seek bar has no marks of chapters');
  await page.evaluate(() => document.querySelector('video').pause());
  await choice.selectOption('2');
  await checkSought(page, 11, 'to a chapter');
  await choice.selectOption('1');
  await checkSought(page, 5, 'back to a chapter');
  await page.evaluate(() => { document.querySelector('video').currentTime = 12; });
  await page.waitForFunction(() => document.querySelector('#chapter').value === '2');
  await page.evaluate(() => document.querySelector('video').play());
  figures.push('chapters');
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
  // The uploads and the server's state have summaries between the search and the first title.
  for (let presses = 0; presses < 3 && await focused(page) !== title; presses++) await page.keyboard.press('Tab');
  check(await focused(page) === title, `behind the search ${await focused(page)} has the focus`);
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  check(outline === 'solid', 'the focus cannot be seen');
  await page.keyboard.press('Enter');
  await hasReached(page, 0.5);
  check(await focused(page) === 'video', `of a title that plays ${await focused(page)} has the focus`);
  check(await video(page, 'playbackRate') === 2, 'the speed was forgotten');
  figures.push('keys alone');
}

// As wide as the window by a key, also after the page was loaded again, and as before by the button.
async function widen(page) {
  const width = async () => (await page.locator('video').boundingBox()).width;
  const before = await width();
  await page.keyboard.press('t');
  const leave = page.getByRole('button', { name: 'Leave theatre view' });
  await leave.waitFor();
  for (const size of [NARROW, WIDE]) {
    await page.setViewportSize(size);
    // Without the scroll bar, where the browser has one.
    const inner = await page.evaluate(() => document.documentElement.clientWidth);
    check(await width() === inner, `in a window of ${inner} the theatre view is ${await width()} wide`);
    const overhang = await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
    check(overhang <= 0, `the theatre view in a window of ${size.width} scrolls sideways by ${overhang}`);
    await checkAccess(page, `theatre view, ${size.width} wide`);
  }
  await page.reload();
  await search(page);
  await leave.click();
  await page.getByRole('button', { name: 'Theatre view' }).waitFor();
  check(await width() === before, `after the theatre view the picture is ${await width()} wide, not ${before}`);
  figures.push('theatre view');
}

// The address of the title as a QR code, which is there once it is asked for.
async function showCode(page) {
  await page.getByText('Other players, and keys').click();
  const show = page.getByRole('button', { name: 'QR code: This page' });
  const image = page.getByRole('img', { name: `QR code of ${pageUrl}#${encodeURIComponent(title)}` });
  check(await image.count() === 0, 'a QR code is there that was not asked for');
  await show.click();
  await image.waitFor();
  const width = await image.evaluate((image) => image.decode().then(() => image.naturalWidth));
  check(width > 0, 'the QR code is empty');
  await checkAccess(page, 'a QR code');
  await show.click();
  await image.waitFor({ state: 'hidden' });
  await page.getByText('Other players, and keys').click();
  figures.push('a QR code');
}

// Light and dark, wide and narrow: nothing is cut off, and text can be read.
async function look(page) {
  await page.locator('video').evaluate((video) => { video.pause(); });
  for (const [size, wanted, name] of [[WIDE, 'light', 'page'], [NARROW, 'dark', 'page-narrow']]) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme: wanted });
    const scheme = CAN_CHANGE_COLOURS ? wanted : 'dark';
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
    const crowded = await page.locator('#controls button').evaluateAll((all) => all
      .filter((button) => !button.getAttribute('aria-label') || button.scrollWidth > button.clientWidth)
      .map((button) => button.id));
    check(crowded.length === 0, `${size.width} wide: controls without a name, or too narrow for what they show: ${crowded.join(', ')}`);
    await checkAccess(page, `${wanted}, ${size.width} wide`);
    if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: size === NARROW });
  }
  figures.push('narrow and dark');
}

// The beginning of the title as films of their own, chosen as files together with one that is empty.
async function uploadFiles(page) {
  await page.getByLabel('Search').fill('');
  const begin = await page.request.get(new URL(`titles/${title}.ts`, pageUrl).href, { headers: { Range: 'bytes=0-1999999' } });
  const bytes = await begin.body();
  const file = (name, buffer) => ({ name: `${name}.ts`, mimeType: 'video/mp2t', buffer });
  const [shown, other] = [`Up Ladén ${browser}`, `Other ${browser}`];
  await page.locator('#file').setInputFiles([file('Empty', Buffer.alloc(0)), file(shown, bytes), file(other, bytes.subarray(0, 188 * 8000))]);
  await page.getByText('Empty.ts was not added: the file is empty.').waitFor();
  await page.getByText(`${shown} was added.`).waitFor();
  await page.getByText(`${other} was added.`).waitFor();
  check(await focused(page) === 'file', `after an upload ${await focused(page)} has the focus`);
  // A long list has only the titles that can be seen. The search needs neither capitals nor accents, and takes accents as
  // characters of their own, as macOS writes them in names of files.
  const listed = page.locator('#titles button', { has: page.getByText(shown, { exact: true }) });
  for (const words of [`up laden ${browser}`, shown.toUpperCase().normalize('NFD')]) {
    await page.getByLabel('Search').fill('no such title');
    await listed.waitFor({ state: 'detached' });
    await page.getByLabel('Search').fill(words);
    await listed.waitFor();
  }
  // The other checks find the store as it was.
  const removed = await page.request.delete(new URL(`api/v1/titles/${UPLOADED[1]}`, pageUrl).href);
  check(removed.status() === 204, `the second upload is not removed: ${removed.status()}`);
  figures.push('two films and an empty file uploaded');
}

// Another film under the same name. What is stopped leaves the title as it was, and goes on when the file is chosen again.
async function replaceFile(page) {
  const shown = `Up Ladén ${browser}`;
  const place = new URL(`api/v1/titles/${UPLOADED[0]}`, pageUrl).href;
  const described = async () => (await page.request.get(place)).json();
  const before = await described();
  const begin = await page.request.get(new URL(`titles/${title}.ts`, pageUrl).href, { headers: { Range: 'bytes=0-2999999' } });
  const file = { name: 'other name.ts', mimeType: 'video/mp2t', buffer: await begin.body() };
  await page.locator('#titles button', { has: page.getByText(shown, { exact: true }) }).click();
  const dialog = page.getByRole('dialog', { name: `Replace “${shown}”?` });
  const now = dialog.getByRole('button', { name: 'Replace' });
  const choose = async () => {
    await page.getByRole('button', { name: 'Replace…' }).click();
    await dialog.waitFor();
    check(await now.isDisabled(), 'a title can be replaced by no file');
    await dialog.getByLabel('New file').setInputFiles(file);
  };
  await choose();
  await checkAccess(page, 'the question before a replacement', 10);
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });
  check(await page.locator('#player').isVisible(), 'Escape closes the player behind the dialog');
  // It stands still until it is stopped.
  const isUpload = (url) => url.search.startsWith('?replace=');
  await page.route(isUpload, () => {});
  await choose();
  await now.click();
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText(/was stopped.*within ten minutes.*The present film is unchanged/).waitFor();
  await page.unroute(isUpload);
  check((await described()).id === before.id, 'an upload that was stopped has replaced the title');
  await choose();
  await now.click();
  await page.getByText(`${shown} was replaced.`).waitFor();
  const after = await described();
  check(after.id !== before.id && after.name === before.name && after.title === shown && after.bytes > before.bytes, `replaced: ${JSON.stringify(after)}`);
  await hasReached(page, 0.2);
  await page.getByRole('button', { name: 'Close' }).click();
  figures.push('a title replaced, after a question');
}

// Deletion asks first, and keeps the title unless it is confirmed.
async function removeFile(page) {
  const shown = `Up Ladén ${browser}`;
  const uploaded = page.locator('#titles button', { has: page.getByText(shown, { exact: true }) });
  await uploaded.click();
  const ask = page.getByRole('button', { name: 'Delete…' });
  const dialog = page.getByRole('dialog', { name: `Delete “${shown}”?` });
  await ask.click();
  await dialog.waitFor();
  check(await focused(page) === 'keep', `of the dialog ${await focused(page)} has the focus`);
  // All but the dialog is inert, so fewer rules apply.
  await checkAccess(page, 'the question before a deletion', 10);
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });
  check(await page.locator('#player').isVisible(), 'Escape closes the player behind the dialog');
  await ask.dblclick();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  const isThere = (await page.request.get(new URL('api/v1/titles', pageUrl).href)).json().then(({ titles }) => titles.some(({ title }) => title === shown));
  check(await isThere, 'a title was deleted without a confirmation');
  await ask.click();
  await dialog.getByRole('button', { name: 'Delete permanently' }).click();
  await page.locator('#player').waitFor({ state: 'hidden' });
  await uploaded.waitFor({ state: 'detached' });
  figures.push('a title deleted, after a question');
}

export async function checkPage(page) {
  // A try before this one may have ended between the upload and the deletion.
  for (const name of UPLOADED) await page.request.delete(new URL(`api/v1/titles/${name}`, pageUrl).href);
  await page.goto(pageUrl);
  await choose(page).waitFor();
  const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);
  figures.push(`first paint after ${Math.round(paint)} ms`);
  await checkAccess(page, 'the list');
  await search(page);
  await playByClick(page);
  await seek(page);
  await seekByBar(page);
  await chooseChapter(page);
  await changeQuality(page);
  await useKeys(page);
  await widen(page);
  await showCode(page);
  await look(page);
  await uploadFiles(page);
  await replaceFile(page);
  await removeFile(page);
  await page.locator('details:not([open]) > summary').evaluateAll((all) => all.forEach((one) => one.click()));
  await checkAccess(page, 'everything unfolded');
  tellAccess();
}
