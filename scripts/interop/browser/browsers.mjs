// How each browser is started: that alone differs.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const BROWSERS = {
  chromium: (program) => ({
    driver: 'chromium',
    executablePath: program,
    args: [
      '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
      '--autoplay-policy=no-user-gesture-required',
    ],
  }),
  // As Mozilla and Debian build it, by WebDriver BiDi: without `channel` Playwright wants a Firefox of its own. Chromium ends with the pipe to it. Firefox has
  // none, and setpriv has to end it with this program.
  'firefox-esr': (program, profile) => ({
    driver: 'firefox',
    channel: 'moz-firefox',
    executablePath: '/usr/bin/setpriv',
    ignoreDefaultArgs: true,
    args: ['--pdeathsig', 'KILL', '--', program, '--remote-debugging-port=0', '--headless', '--profile', profile],
    // Nothing of its own goes out to anybody; and dark colours, which Chromium is told later.
    firefoxUserPrefs: { 'network.dns.disabled': true, 'layout.css.prefers-color-scheme.content-override': 0 },
  }),
};

// Starts `name` of /usr/bin with an empty profile. `playwright`: the folder of playwright-core.
export async function start(playwright, name, more) {
  const profile = await mkdtemp(join(tmpdir(), `millrace-${name}-`));
  const { driver, ...options } = BROWSERS[name](`/usr/bin/${name}`, profile);
  const { [driver]: type } = await import(join(playwright, 'index.mjs'));
  const context = await type.launchPersistentContext(profile, { ...options, headless: true, ...more });
  const end = async () => {
    await context.close();
    await rm(profile, { recursive: true, force: true });
  };
  return { context, end };
}
