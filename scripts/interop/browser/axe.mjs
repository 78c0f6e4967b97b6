// Whether everybody can use the page: the rules of axe-core find nothing (WCAG 2.2 A and AA, and good practice).
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { check, figures, playwright } from './common.mjs';

const source = readFileSync(join(dirname(playwright), 'axe-core/axe.min.js'), 'utf8');
let passes = 0;

// Looks at the page as it is now. Fewer rules than `least` mean that axe did not see the page.
export async function checkAccess(page, what, least = 21) {
  // Scripts of the page may come from its server only, so this one comes past it.
  await page.evaluate(`${source}; undefined`);
  const { violations, passed } = await page.evaluate(async () => {
    const { violations, passes } = await globalThis.axe.run(document);
    return { violations, passed: passes.length };
  });
  const found = violations.map(({ id, help, nodes }) => `${id}: ${help} (${nodes.slice(0, 3).map(({ html, any }) => `${html.slice(0, 120)} ${any[0]?.message ?? ''}`).join('; ')})`);
  check(found.length === 0, `${what}: ${found.join('; ')}`);
  check(passed >= least, `${what}: only ${passed} rules of axe applied`);
  passes += passed;
}

export const tellAccess = () => figures.push(`axe: nothing found, ${passes} rules passed`);
