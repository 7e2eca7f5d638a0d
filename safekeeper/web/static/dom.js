// Draws descriptions of elements, and changes only what differs from what is there: focus, selection and scroll positions
// stay. Texts become text nodes and attributes are those that the callers name, so no text can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Describe an element. Children that are null are left out; anything that is not a description is text. */
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children: children.flat(Infinity).filter((child) => child !== null && child !== undefined) };
}

/** Make the children of `parent` those that are described. */
export function render(parent, ...described) {
  const wanted = described.flat(Infinity).filter((child) => child !== null && child !== undefined);
  wanted.forEach((child, index) => {
    const present = parent.childNodes[index];
    const node = fits(present, child) ? present : create(parent, child);
    if (!present) parent.append(node);
    else if (node !== present) present.replaceWith(node);
    update(node, child);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function fits(node, described) {
  if (!node) return false;
  if (described.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === described.tag;
}

function create(parent, described) {
  if (described.tag === undefined) return document.createTextNode("");
  const inSvg = described.tag === "svg" || parent.namespaceURI === SVG;
  return inSvg ? document.createElementNS(SVG, described.tag) : document.createElement(described.tag);
}

function update(node, described) {
  if (described.tag === undefined) {
    const text = visible(String(described));
    if (node.data !== text) node.data = text;
    return;
  }
  for (const { name } of [...node.attributes]) if (!(name in described.attributes)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(described.attributes)) {
    const text = visible(String(value));
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
  render(node, ...described.children);
}

/** Show control characters, and those that change the direction of a text, as what they are. */
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]/g, (character) =>
    character === "\n" || character === "\t" ? " " : `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`,
  );
}

export function byId(id) {
  return document.getElementById(id);
}
