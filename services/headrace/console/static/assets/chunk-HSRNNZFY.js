import{o as e}from"./chunk-DWI3IBTU.js";function o({schema:r,table:t,operation:i}){return t?e(r==="public"||!r?t:`${r}.${t}`):i.toLowerCase()}export{o as a};
