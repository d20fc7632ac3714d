// Nodes of the page. Texts are only ever set as text: nothing from outside becomes markup.

export const byId = (id) => document.getElementById(id);

/** A new element. `attributes` with the value false, null or undefined are left out. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Set a text if it is another one: nodes that stay as they are need no layout. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute, or remove it: for null, undefined and false. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

const rowsOf = new WeakMap();

/**
 * Make the children of `parent` those of `items`, in this order. Nodes are used again by key.
 * `update` is called for each one with its node and its item.
 */
export function keep(parent, items, keyOf, create, update) {
  let known = rowsOf.get(parent);
  if (!known) {
    known = new Map();
    rowsOf.set(parent, known);
    parent.replaceChildren();
  }
  const before = new Map(known);
  known.clear();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (known.has(key)) continue;
    const node = before.get(key) ?? create(item);
    before.delete(key);
    known.set(key, node);
    update(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of before.values()) node.remove();
}
