
// --- uploads ---

// The upload request in progress, the stopped file with the name of its title (it resumes if chosen
// again), and the queued files, each with the title that it replaces, if it does.
let bringing = null;
let stopped = null;
let waiting = [];
const RESULTS_SHOWN = 50;

// A name that the server takes, of what a file is called.
function titleOf(file) {
  const plain = file.name.replace(/[.][^.]*$/, '').normalize('NFKD').replace(/[\u0300-\u036f]/g, '').toLowerCase();
  const name = plain.replace(/[^a-z0-9._]+/g, '-').replace(/^[-._]+/, '').slice(0, 180).replace(/[-._]+$/, '');
  return /^([0-9a-f]{32})?$/.test(name) ? ('film-' + name).replace(/-$/, '') : name;
}

const mebibytes = (bytes) => (bytes / 1048576).toFixed(1) + ' MiB';
const isSame = (a, b) => Boolean(a && b) && a.name === b.name && a.size === b.size && a.lastModified === b.lastModified;

function offerUpload(whether) {
  at('uploads').hidden = whether === 'no';
  at('bring').hidden = whether !== 'yes';
  at('sign-in').hidden = whether !== 'sign-in';
}

// Shows a result, newest first.
function sayOfUpload(text) {
  at('brought').prepend(element('p', text));
  while (at('brought').childElementCount > RESULTS_SHOWN) at('brought').lastElementChild.remove();
}

// Shown at most four times a second: a screen reader reads it.
let shownAt = 0;
function showProgress(name, done, total) {
  at('share').value = total ? done / total : 1;
  if (performance.now() - shownAt < 250 && done < total) return;
  shownAt = performance.now();
  const more = waiting.length ? ' (' + waiting.length + ' more waiting)' : '';
  at('what-is-brought').textContent = name + ': ' + mebibytes(done) + ' of ' + mebibytes(total) + (done < total ? '' : ', being converted') + more;
}

// How much of it the server has; 0 if it is not the one that was stopped.
async function offsetOf(file, name, place) {
  if (!stopped || stopped.name !== name || !isSame(file, stopped.file)) return 0;
  try {
    const answer = await fetch(place);
    const { received_bytes: received, total_bytes: total } = answer.ok ? await answer.json() : {};
    return total === file.size && received < total ? received : 0;
  } catch {
    return 0;
  }
}

function uploadAll(files, replaced = null) {
  waiting.push(...[...files].map((file) => ({ file, replaced })));
  at('uploads').open = true;
  if (!bringing) uploadNext();
}

function uploadNext() {
  const next = waiting.shift();
  if (!next) return at('file').focus();
  const { file, replaced } = next;
  if (file.size === 0) {
    sayOfUpload(file.name + ' was not added: the file is empty.');
    return uploadNext();
  }
  upload(file, replaced);
}

async function upload(file, replaced) {
  const name = replaced ? replaced.name : titleOf(file);
  const place = address('titles/' + encodeURIComponent(name));
  const request = new XMLHttpRequest();
  bringing = request;
  const from = await offsetOf(file, name, place);
  stopped = { file, name };
  at('bringing').hidden = false;
  showProgress(name, from, file.size);
  // With its id: one that was replaced meanwhile by others stays.
  request.open('PUT', place + (replaced ? '?replace=' + replaced.id : ''));
  request.setRequestHeader('Content-Disposition', "attachment; filename*=UTF-8''" + encodeURIComponent(file.name.replace(/\p{Surrogate}/gu, '_')));
  if (from) request.setRequestHeader('Content-Range', 'bytes ' + from + '-' + (file.size - 1) + '/' + file.size);
  request.upload.addEventListener('progress', (event) => showProgress(name, from + event.loaded, file.size));
  request.addEventListener('loadend', () => uploaded(name, replaced, request));
  request.send(from ? file.slice(from) : file);
}

function uploaded(name, replaced, request) {
  const isHalted = bringing !== request;
  bringing = null;
  at('bringing').hidden = true;
  at('file').value = '';
  let said = {};
  try {
    said = JSON.parse(request.responseText);
  } catch {
    // Nothing, or no JSON: the status has to do.
  }
  if (request.status === 201) {
    stopped = null;
    sayOfUpload((said.title || said.name) + (replaced ? ' was replaced.' : ' was added.'));
    load();
  } else if (request.status === 0) {
    sayOfUpload(name + (isHalted ? ' was stopped' : ': the connection was lost') + '. Choose the file again within ten minutes to resume.' + (replaced ? ' The present film is unchanged.' : ''));
  } else {
    sayOfUpload(name + (replaced ? ' was not replaced: ' : ' was not added: ') + (said.error ? said.error.message : 'the server answers with status ' + request.status) + '.');
  }
  uploadNext();
}

at('file').addEventListener('change', () => uploadAll(at('file').files));
at('halt').addEventListener('click', () => {
  const request = bringing;
  bringing = null;
  request.abort();
});
// The browser asks for name and password, because the server asks it.
at('sign-in').addEventListener('click', async () => {
  const answer = await fetch(address('api/v1/uploads')).catch(() => null);
  if (answer && answer.ok) offerUpload('yes');
  else sayOfUpload(answer ? 'You may not upload here.' : 'The server does not answer.');
});
for (const name of ['dragover', 'drop']) {
  addEventListener(name, (event) => {
    if (at('bring').hidden || at('uploads').hidden || !event.dataTransfer.types.includes('Files')) return;
    event.preventDefault();
    if (name === 'drop') uploadAll(event.dataTransfer.files);
  });
}
