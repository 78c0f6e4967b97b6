// Drives a browser over the page of a running server, as people do, and compares the pictures that it shows with the numbers that are drawn into them.
//
//   node check.mjs PLAYWRIGHT BROWSER PAGE TITLE PART [PICTURES]
//
// PLAYWRIGHT: the folder of playwright-core. BROWSER: `chromium` or `firefox-esr`, of /usr/bin. TITLE: a title with renditions whose pictures carry their number
// (NUMBER_BITS blocks, see common.mjs). PART: one of PARTS. PICTURES: a folder for two screenshots. Prints figures, one line each; the last line of an error says
// what was wrong.
import { start } from './browsers.mjs';
import { browser, check, figures, helpers, NUMBER_BITS, pageUrl, part, PATIENCE_MS, playwright } from './common.mjs';
import { checkFolders } from './folders.mjs';
import { checkLive } from './live.mjs';
import { checkPage, WIDE } from './page.mjs';
import { checkCodecs, checkJoined, checkLevels, checkSounds, checkSubtitles } from './titles.mjs';
import { checkTroubles } from './troubles.mjs';

const PARTS = {
  page: checkPage, // search, click, seek, quality, keys, a narrow window, an upload
  folders: checkFolders, // folders of the list
  live: checkLive, // a live title, rewound and recorded
  troubles: checkTroubles, // what the page says when something is wrong
  levels: checkLevels, // hls.js plays every rendition
  sounds: checkSounds, // of a title with two sounds, each can be chosen
  codecs: checkCodecs, // of a title with AC-3, which browsers lack
  joined: checkJoined, // of a title of two recordings, as fragmented MP4
  subtitles: checkSubtitles, // of a title whose subtitles say when they are to be seen
};

const { context, end } = await start(playwright, browser, { viewport: WIDE });
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
      page.on('console', (message) => { if (message.type() === 'error') complaints.push(`console: ${message.text()} (${message.location().url})`); });
      page.on('pageerror', (error) => complaints.push(`error in the page: ${error}`));
    }
    return page;
  };
  await PARTS[part](await newPage(true), newPage);
  check(complaints.length === 0, complaints.join('; '));
  console.log(figures.join('\n'));
} catch (error) {
  // The last line is all that a report shows: what was awaited, and after which step.
  const [message, awaited] = [error.message.split('\n')[0], /waiting for ([^\u001b\n]*)/.exec(error.message)?.[1]];
  const place = [awaited && `waiting for ${awaited}`, figures.length > 0 && `after: ${figures.at(-1)}`].filter(Boolean).join(', ');
  console.error([...figures, ...complaints, `${part}: ${message}${place && ` (${place})`}`].join('\n'));
  process.exitCode = 1;
} finally {
  await end();
}
