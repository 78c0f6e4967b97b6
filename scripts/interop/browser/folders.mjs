// Folders of the list: what is in them, their addresses, and that a big one is not all in the page.
import { checkAccess } from './axe.mjs';
import { check, figures, pageUrl, title } from './common.mjs';

const MANY = 10_000;

// The titles of the server, and made-up ones: a show of two seasons, a folder with one film, a big folder.
const withFolders = (page) => page.route('**/api/v1/titles', async (route) => {
  const response = await route.fetch();
  const body = await response.json();
  const real = body.titles.find(({ name }) => name === title);
  const made = (name, ...folders) => ({ ...real, name, title: name, id: name, folders, folder: folders.at(-1) ?? null });
  body.titles = [
    made(title), made('one-one', 'A <b>show</b>', 'Season 1'), made('one-two', 'A <b>show</b>', 'Season 1'), made('two-one', 'A <b>show</b>', 'Season 2/3'),
    made('two-two', 'A <b>show</b>', 'Season 2/3'), made('alone', 'Film (2001)'),
    ...Array.from({ length: MANY }, (_, number) => made(`many-${number}`, 'Many')),
  ];
  await route.fulfill({ response, body: JSON.stringify(body) });
});

const listed = (page) => page.locator('#titles strong').allTextContents();
const trail = (page) => page.locator('#trail li').allTextContents();
const focused = (page) => page.evaluate(() => document.activeElement.dataset.name || document.activeElement.textContent);

async function expect(page, wanted, what) {
  const isThere = (wanted) => [...document.querySelectorAll('#titles strong')].map((tile) => tile.textContent).join() === wanted;
  await page.waitForFunction(isThere, wanted.join()).catch(async () => {
    throw new Error(`${what}: the list has ${await listed(page)}, not ${wanted}`);
  });
}

// The part begins with `page`, and each address is opened as a link too.
export async function checkFolders(page) {
  await withFolders(page);
  await page.goto(pageUrl);
  // A folder with one title is that title.
  const top = ['A <b>show</b>', 'Many', 'alone', title];
  await expect(page, top, 'the top');
  check(await page.locator('#titles .folder').count() === 2, 'other tiles than folders look like folders');
  await page.locator('#titles').getByText('4 titles', { exact: true }).waitFor();
  await checkAccess(page, 'a list with folders');
  const open = (name) => page.locator('#titles button').filter({ hasText: name }).click();
  await open('A <b>show</b>');
  await expect(page, ['Season 1', 'Season 2/3'], 'a folder');
  check((await trail(page)).join() === 'All titles,A <b>show</b>' && await page.locator('b').count() === 0, `the trail is ${await trail(page)}`);
  check(await focused(page) === 'A <b>show</b>', `in a folder ${await focused(page)} has the focus`);
  await open('Season 2/3');
  const season = ['two-one', 'two-two'];
  await expect(page, season, 'a folder in a folder');
  await page.locator('#status').getByText(`2 of ${MANY + 6} titles`).waitFor();
  await checkAccess(page, 'a folder');
  // Loaded again, and as a link: the same. Back leads out.
  await page.reload();
  await expect(page, season, 'a folder that is loaded again');
  await page.goBack();
  await expect(page, ['Season 1', 'Season 2/3'], 'back');
  check((await focused(page)).includes('Season%202%2F3'), `back from a folder ${await focused(page)} has the focus`);
  await page.getByRole('navigation', { name: 'Folders' }).getByRole('link', { name: 'All titles' }).click();
  await expect(page, top, 'the first step of the trail');
  // The search finds what is in folders, from within any of them.
  await open('A <b>show</b>');
  await page.getByLabel('Search').fill('alone');
  await expect(page, ['alone'], 'the search in a folder');
  check(await page.locator('#trail').isHidden(), 'the trail is shown while all folders are searched');
  await page.getByLabel('Search').fill('');
  await expect(page, ['Season 1', 'Season 2/3'], 'after the search');
  // A title closes into its folder, also when a link led to it.
  await page.goto(pageUrl + '#two-one');
  await page.reload();
  await page.locator('#player').waitFor();
  await expect(page, season, 'a link to a title');
  await page.getByRole('button', { name: 'Close' }).click();
  await page.locator('#player').waitFor({ state: 'hidden' });
  await expect(page, season, 'after a title');
  check(decodeURIComponent(new URL(page.url()).hash) === '#folder=A <b>show</b>/Season 2/3', `after a title the address is ${page.url()}`);
  await page.goto(pageUrl + '#folder=Gone');
  await page.getByText('There is no folder “Gone” here.').waitFor();
  await expect(page, top, 'a folder that is gone');
  // The tiles of a big folder are made as they come into view.
  await open('Many');
  await page.locator('#status').getByText(`${MANY} of ${MANY + 6} titles`).waitFor();
  const made = await page.locator('#titles li').count();
  check(made < 200, `a folder of ${MANY} titles has ${made} elements`);
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await page.locator('#titles').getByText(`many-${MANY - 1}`, { exact: true }).waitFor();
  figures.push(`folders, ${made} elements for ${MANY} titles`);
}
